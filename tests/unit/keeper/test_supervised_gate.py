"""A supervisor with a gate: ready when both are, drained together, stopped after it. No server runs and no time passes here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from bistream.keeper import supervisor as supervisor_module
from bistream.keeper.gate import Gate
from bistream.keeper.host import GoldenError
from bistream.keeper.server_process import Interrupted, ServerSettings, TritonServer, never
from bistream.keeper.server_start import Verify
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from tests.unit.keeper.test_supervisor import FakeServer, Rehearsal, signal_at


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


def test_nothing_is_announced_before_the_gate_is_ready() -> None:
    def at_pause(supervisor: Rehearsal, number: int) -> None:
        assert isinstance(supervisor, Guarded) and not supervisor.is_ready
        signal_at(3)(supervisor, number)

    supervisor = Guarded(Idle(), at_pause)
    supervisor.gate.takes_sessions = False
    supervisor.run()
    assert "ready" not in supervisor.server.calls


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
        def begin(self, model_repository: Path) -> None: ...

        def __call__(self, server: TritonServer, should_stop: object) -> None:
            calls.append("verify")
            if calls.count("verify") == 1:
                raise GoldenError("It speaks wrong.")

    verification = Verification()

    monkeypatch.setattr(supervisor_module, "start_server", start)
    settings = ServerSettings(Path("/none"), Path("/none"), Path("/none"))
    keeper = SupervisorSettings(probe_interval_s=0.0, hang_timeout_s=0.0)
    gate = FakeGate(calls)
    supervisor = Supervisor(settings, keeper, clock=lambda: 0.0, pause=lambda seconds: supervisor.stop(), gate=gate, verify=verification)
    supervisor.run()
    assert calls[:7] == ["hold the gate", "start", "verify", "hold the gate", "start", "verify", "release the gate"]
