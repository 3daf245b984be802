"""How a supervisor ends its server: drained on the first signal, at once on the second. No server runs and no time passes here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.server_process import ServerSettings, TritonServer
from bistream.keeper.supervisor import Supervisor, SupervisorSettings


class FakeServer:
    """A server and its drain in one. left: the number of sessions at each check; after the last one none are left."""

    def __init__(self, left: list[int]) -> None:
        self.left = left
        self.calls: list[str] = []
        self.code: int | None = None
        self.dead = 0
        self.deaf = False
        self.hurried_at_stop: bool | None = None

    def exit_code(self) -> int | None:
        return self.code

    def dead_models(self) -> int:
        return self.dead

    def drain(self, timeout_s: float, clock: Callable[[], float]) -> FakeServer:
        self.calls.append(f"drain {timeout_s:g}")
        if self.deaf:
            raise OSError("disk full")
        return self

    def is_over(self) -> bool:
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
        keeper = SupervisorSettings(probe_interval_s=0.0, drain_timeout_s=7.0, max_restarts=0)
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


def test_a_server_without_sessions_is_stopped_without_waiting() -> None:
    supervisor = Rehearsal(FakeServer([]), signal_at(1))
    supervisor.run()
    assert supervisor.server.calls == ["unready", "drain 7", "unready", "stop"] and supervisor.pauses == 1


def test_the_second_signal_ends_the_drain() -> None:
    supervisor = Rehearsal(FakeServer([1] * 100), signal_at(1, 4))
    supervisor.run()
    assert supervisor.server.calls[-1] == "stop" and supervisor.server.hurried_at_stop is True
    assert supervisor.pauses == 4


def test_two_signals_at_once_do_not_wait_at_all() -> None:
    supervisor = Rehearsal(FakeServer([1] * 100), signal_at(1, 1))
    supervisor.run()
    assert supervisor.server.hurried_at_stop is True and supervisor.pauses == 1


def die(supervisor: Rehearsal, number: int) -> None:
    signal_at(1)(supervisor, number)
    if number == 3:
        supervisor.server.code = -11


def lose_a_model(supervisor: Rehearsal, number: int) -> None:
    signal_at(1)(supervisor, number)
    if number == 3:
        supervisor.server.dead = 1


@pytest.mark.parametrize("failure", [die, lose_a_model])
def test_a_server_that_fails_while_it_drains_is_not_waited_for(failure: Callable[[Rehearsal, int], None]) -> None:
    supervisor = Rehearsal(FakeServer([1] * 100), failure)
    supervisor.run()
    assert supervisor.server.calls[-1] == "stop" and supervisor.pauses == 3


def test_models_that_cannot_be_drained_are_stopped_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer([1])
    server.deaf = True
    Rehearsal(server, signal_at(1)).run()
    assert server.calls[-1] == "stop" and "disk full" in caplog.text


def test_a_failed_server_is_killed_and_not_drained() -> None:
    def fail(supervisor: Rehearsal, number: int) -> None:
        supervisor.server.dead = 1

    supervisor = Rehearsal(FakeServer([1]), fail)
    with pytest.raises(ServerError, match="The process of a model has died; giving up after 0 restarts"):
        supervisor.run()
    assert supervisor.server.calls == ["unready", "unready", "kill"]
