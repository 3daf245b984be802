"""When a failed server is started again: soon at first, slowly when it fails again and again, never not at all. No time passes here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper.host import ServerError
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy
from bistream.keeper.server_process import Interrupted, ServerSettings, TritonServer
from bistream.keeper.server_watch import Fault, ServerWatch
from bistream.keeper.supervisor import Supervisor, SupervisorSettings
from tests.clock import ManualClock

LIMITS = RestartLimits(budget=4, window_s=600.0, first_delay_s=1.0, longest_delay_s=60.0)


@given(st.lists(st.floats(0.0, 1000.0), max_size=40), st.integers(1, 10))
def test_no_delay_is_longer_than_the_longest_and_no_window_sees_more_restarts_than_it_may(gaps: list[float], budget: int) -> None:
    clock = ManualClock()
    limits = RestartLimits(budget, window_s=600.0, first_delay_s=1.0, longest_delay_s=60.0)
    policy = RestartPolicy(limits, clock)
    restarts: list[float] = []
    for gap in gaps:
        clock.now += gap
        delay_s = policy.record_failure()
        assert 0.0 <= delay_s <= limits.longest_delay_s
        clock.now += delay_s
        restarts.append(clock.now)
        in_window = [at for at in restarts if at > clock.now - limits.window_s]
        assert len(in_window) <= budget + 1 + limits.window_s / limits.longest_delay_s


class Rehearsal(Supervisor):
    """Servers that never run: ``lives`` holds the lifetime of each (hours; None: it does not start). After the last one, ``stop``."""

    def __init__(self, lives: list[float | None], max_restarts: int = 3) -> None:
        self.now = 0.0
        self.lives = list(lives)
        self.started_at: list[float] = []
        self.states: list[str] = []

        def pause(seconds: float) -> None:
            self.states.append(self.state)
            self.now += seconds

        settings = ServerSettings(Path("/none"), Path("/none"), Path("/none"))
        super().__init__(settings, SupervisorSettings(max_restarts=max_restarts), clock=lambda: self.now, pause=pause)

    def _start(self) -> TritonServer:
        if not self.lives:
            raise Interrupted
        self.started_at.append(self.now)
        if self.lives[0] is None:
            self.lives.pop(0)
            raise ServerError("It does not start.")
        return TritonServer(self._server_settings)

    @contextlib.contextmanager
    def _watched(self, server: TritonServer) -> Iterator[ServerWatch]:
        life = self.lives.pop(0)
        assert life is not None
        self.now += 3600.0 * life
        yield cast(ServerWatch, SimpleNamespace(look=lambda: Fault("It has died")))

    def _tell(self, server: TritonServer, fault: Fault) -> None:
        assert fault.reason == "It has died"


def started_at(lives: list[float | None]) -> list[float]:
    rehearsal = Rehearsal(lives)
    with pytest.raises(Interrupted):
        rehearsal.run()
    assert rehearsal.lives == []
    return rehearsal.started_at


def test_a_server_that_dies_now_and_then_is_restarted_at_once() -> None:
    assert started_at([1.0] * 5) == [3600.0 * hour for hour in range(5)]


def test_a_server_that_does_not_start_again_is_tried_again_more_and_more_slowly() -> None:
    assert started_at([1.0, None, None, None, None, 1.0]) == [0.0, 3600.0, 3601.0, 3603.0, 3663.0, 3723.0]


def test_a_server_that_fails_for_ever_is_never_given_up_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rehearsal = Rehearsal([0.0] * 50)
    with pytest.raises(Interrupted):
        rehearsal.run()
    gaps = [later - earlier for earlier, later in zip(rehearsal.started_at, rehearsal.started_at[1:], strict=False)]
    assert gaps[:3] == [0.0, 1.0, 2.0] and set(gaps[3:]) == {60.0}
    loud = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(loud) == 47 and "It has died; it has failed 4 times within 10 minutes and is restarted only every 60 s" in loud[0]
    assert rehearsal.states[-1] in loud, "the health port says the same"


def test_the_first_start_must_succeed() -> None:
    with pytest.raises(ServerError, match="It does not start"):
        Rehearsal([None, 1.0]).run()


def test_a_server_that_may_not_be_restarted_ends_with_the_reason() -> None:
    with pytest.raises(ServerError, match="It has died; giving up after 0 restarts"):
        Rehearsal([1.0, 1.0], max_restarts=0).run()


def test_a_signal_ends_the_wait_for_a_restart() -> None:
    rehearsal = Rehearsal([0.0] * 50)
    pause = rehearsal._pause

    def stop_late(seconds: float) -> None:
        pause(seconds)
        if rehearsal.now > 10.0:
            rehearsal.stop()

    rehearsal._pause = stop_late
    with pytest.raises(Interrupted):
        rehearsal.run()
    assert rehearsal.now < 11.0 and rehearsal.state == "The server is shutting down."
