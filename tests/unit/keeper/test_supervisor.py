"""How a supervisor ends its server: drained on the first signal, at once on the second; with a gate, ready when both are, drained together,
stopped after it. No server runs and no time passes here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from bistream.keeper import supervisor as supervisor_module
from bistream.keeper.gate import Gate
from bistream.keeper.host import GoldenError, ServerError
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy
from bistream.keeper.server_process import Interrupted, ServerSettings, TritonServer, never
from bistream.keeper.server_start import Verify
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from bistream.processes.control_files import Order


class FakeServer:
    """A server and its drain in one. left: the number of sessions at each check; after the last one none are left."""

    def __init__(self, left: list[int]) -> None:
        self.left = left
        self.calls: list[str] = []
        self.code: int | None = None
        self.dead: list[str] = []
        self.ending_looks = 0  # looks until a failure has been told to all sessions
        self.deaf = False
        self.hurried_at_stop: bool | None = None

    def exit_code(self) -> int | None:
        return self.code

    @property
    def models(self) -> FakeServer:
        return self

    def take_dead(self) -> list[str]:
        dead, self.dead = self.dead, []
        return dead

    def end_sessions(self, order: Order, clock: Callable[[], float]) -> FakeServer:
        word = "drain" if order.failed is None else f"tell {order.failed or '-'}"
        self.calls.append(f"{word} {order.patience_s:g}")
        if self.deaf:
            raise OSError("disk full")
        if order.failed is not None:
            self.left = [1] * self.ending_looks
        return self

    def is_over(self) -> bool:
        if self.calls[-1].startswith("tell") and self.left:
            self.left.pop()
            return False
        return not self.left

    @property
    def sessions_left(self) -> int:
        return self.left.pop(0)

    def stop(self, exit_timeout_s: float | None = None, should_hurry: Callable[[], bool] = lambda: False) -> None:
        self.hurried_at_stop = should_hurry()
        self.calls.append("kill" if exit_timeout_s == 0 else "stop")


class Rehearsal(Supervisor):
    """``at_pause`` replaces every wait and gets its number."""

    def __init__(self, server: FakeServer, at_pause: Callable[[Rehearsal, int], None]) -> None:
        self.server = server
        self.pauses = 0
        self.ready_at: list[bool] = []
        self.withdrawn = 0

        def pause(seconds: float) -> None:
            self.pauses += 1
            self.ready_at.append(self.is_ready)
            at_pause(self, self.pauses)

        settings = ServerSettings(Path("/none"), Path("/none"), Path("/none"))
        keeper = SupervisorSettings(probe_interval_s=0.0, drain_timeout_s=7.0, max_restarts=0, hang_timeout_s=0.0)
        super().__init__(settings, keeper, on_unready=self.withdraw, clock=lambda: 0.0, pause=pause)

    def withdraw(self) -> None:
        self.withdrawn += 1
        self.server.calls.append("unready")

    def _start(self) -> TritonServer:
        return cast(TritonServer, self.server)


def signal_at(*pauses: int) -> Callable[[Rehearsal, int], None]:
    def at_pause(supervisor: Rehearsal, number: int) -> None:
        for pause in pauses:
            if pause == number:
                supervisor.stop()

    return at_pause


def test_the_first_signal_drains_until_no_session_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    supervisor = Rehearsal(FakeServer([3, 3, 1]), signal_at(2))
    supervisor.run()
    assert supervisor.server.calls == ["unready", "drain 7", "unready", "stop"]
    assert supervisor.server.hurried_at_stop is False
    assert supervisor.pauses == 5 and supervisor.server.left == []
    assert supervisor.ready_at == [True, True, False, False, False]
    assert [message for message in caplog.messages if "left" in message] == ["draining: 3 sessions left", "draining: 1 sessions left"]


@pytest.mark.parametrize(("loss", "calls"), [({"code": -11}, []), ({"dead": ["llm_bistream"]}, ["tell llm_bistream 5"])])
def test_a_server_that_fails_while_it_drains_is_not_waited_for(loss: dict[str, object], calls: list[str]) -> None:
    def at_pause(supervisor: Rehearsal, number: int) -> None:
        signal_at(1)(supervisor, number)
        if number == 3:
            vars(supervisor.server).update(loss)

    supervisor = Rehearsal(FakeServer([1] * 100), at_pause)
    supervisor.run()
    assert supervisor.server.calls == ["unready", "drain 7", *calls, "unready", "stop"] and supervisor.pauses <= 4


@pytest.mark.parametrize("is_drained", [True, False])
def test_models_that_hear_nothing_delay_neither_the_end_nor_the_restart(is_drained: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer([1])
    server.deaf = True
    if is_drained:
        Rehearsal(server, signal_at(1)).run()
    else:
        with pytest.raises(ServerError):
            Rehearsal(server, lose("llm_bistream")).run()
    assert server.calls[-1] == ("stop" if is_drained else "kill") and "disk full" in caplog.text


def lose(model: str) -> Callable[[Rehearsal, int], None]:
    def at_pause(supervisor: Rehearsal, number: int) -> None:
        if number == 1:
            supervisor.server.dead = [model]

    return at_pause


def test_sessions_are_told_before_a_failed_server_is_killed() -> None:
    server = FakeServer([1])
    server.ending_looks = 3
    supervisor = Rehearsal(server, lose("token2wav"))
    with pytest.raises(ServerError, match=r"The process of a model has died \(token2wav\); giving up"):
        supervisor.run()
    assert server.calls == ["unready", "tell token2wav 0", "unready", "kill"]
    assert supervisor.ready_at == [True, *[False] * 4], "three looks and the last words"


class Mute(Rehearsal):
    """The first starts speak wrong."""

    def __init__(self, server: FakeServer, at_pause: Callable[[Rehearsal, int], None], failures: int, restarts: int) -> None:
        super().__init__(server, at_pause)
        self._settings = replace(self._settings, max_restarts=restarts)
        self._limits = RestartLimits(budget=restarts)
        self._policy = RestartPolicy(self._limits, lambda: 0.0)
        self.failures = failures
        self.states: list[str] = []

    def _start(self) -> TritonServer:
        self.states.append(self.state)
        if self.failures:
            self.failures -= 1
            raise GoldenError("The golden utterance is not as stored.")
        return super()._start()


def test_a_server_that_speaks_wrong_is_tried_again_and_says_why_it_is_not_ready() -> None:
    supervisor = Mute(FakeServer([]), signal_at(3), failures=1, restarts=5)
    supervisor.run()
    assert supervisor.states[1] == "The golden utterance is not as stored; the server is restarted in 0 s."
    assert supervisor.server.calls == ["unready", "drain 7", "unready", "stop"]


# With a gate


class Idle(FakeServer):
    """No session runs."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def sessions_left(self) -> int:
        return 0


class FakeGate(Gate):
    """pauses: how many looks at ``has_ended`` it takes to drain. Calls go where the server's go, for their order."""

    def __init__(self, calls: list[str], looks: int = 0) -> None:
        self.calls = calls
        self.takes_sessions = True
        self.looks = looks

    @property
    def is_ready(self) -> bool:
        return self.takes_sessions

    @property
    def has_ended(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def hold(self) -> None:
        self.calls.append("hold the gate")

    def release(self) -> None:
        self.calls.append("release the gate")

    def drain(self) -> None:
        self.calls.append("drain the gate")

    @contextlib.contextmanager
    def opened(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        self.calls.append("open the gate")
        yield
        self.calls.append("close the gate")


class Guarded(Rehearsal):
    """As ``Rehearsal``, with a gate."""

    def __init__(self, server: FakeServer, at_pause: Callable[[Rehearsal, int], None], looks: int = 0) -> None:
        super().__init__(server, at_pause)
        self.gate = FakeGate(server.calls, looks)
        self._gate = self.gate
        self._on_ready = lambda server: self.server.calls.append("ready")


def test_the_server_is_stopped_when_the_gate_has_ended_too() -> None:
    supervisor = Guarded(Idle(), signal_at(1), looks=5)
    with supervisor.open_gate():
        supervisor.run()
    calls = ["open the gate", "ready", "unready", "drain the gate", "drain 7", "unready", "stop", "close the gate"]
    assert supervisor.server.calls == calls
    assert supervisor.gate.looks == -1 and supervisor.pauses == 6


def test_the_second_signal_waits_for_neither() -> None:
    supervisor = Guarded(Idle(), signal_at(1, 3), looks=100)
    supervisor.run()
    assert supervisor.server.hurried_at_stop is True and supervisor.pauses == 3


def test_readiness_is_withdrawn_while_the_gate_is_not_ready() -> None:
    def at_pause(supervisor: Rehearsal, number: int) -> None:
        assert isinstance(supervisor, Guarded)
        supervisor.gate.takes_sessions = number not in (2, 3)
        signal_at(6)(supervisor, number)

    supervisor = Guarded(Idle(), at_pause)
    supervisor.run()
    assert supervisor.server.calls[:4] == ["ready", "unready", "ready", "unready"]
    assert supervisor.ready_at == [True, True, False, False, True, True]


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_command_is_run_when_the_gate_is_ready(is_ready: bool) -> None:
    supervisor = Guarded(Idle(), signal_at() if is_ready else signal_at(2))
    supervisor.gate.takes_sessions = is_ready
    if is_ready:
        assert Supervisor.run_command(supervisor, lambda server: ["sh", "-c", "exit 3"]) == 3
    else:
        with pytest.raises(Interrupted):
            supervisor.run_command(lambda server: ["false"])
    assert ("ready" in supervisor.server.calls) is is_ready and supervisor.server.calls[-1] == "stop"


def test_the_gate_is_held_until_the_server_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Idle()
    calls = server.calls

    def start(settings: object, timeout_s: float, should_stop: object, verify: Verify) -> TritonServer:
        calls.append("start")
        verify(cast(TritonServer, server), never)
        return cast(TritonServer, server)

    class Verification:
        def __call__(self, server: TritonServer, should_stop: object) -> None:
            calls.append("verify")
            if calls.count("verify") == 1:
                raise GoldenError("It speaks wrong.")

    monkeypatch.setattr(supervisor_module, "start_server", start)
    settings = ServerSettings(Path("/none"), Path("/none"), Path("/none"))
    keeper = SupervisorSettings(probe_interval_s=0.0, hang_timeout_s=0.0)
    gate = FakeGate(calls)
    supervisor = Supervisor(settings, keeper, clock=lambda: 0.0, pause=lambda seconds: supervisor.stop(), gate=gate, verify=Verification())
    supervisor.run()
    assert calls[:7] == ["hold the gate", "start", "verify", "hold the gate", "start", "verify", "release the gate"]
