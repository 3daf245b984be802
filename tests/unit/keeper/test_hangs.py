"""When a process counts as hanging, and when as busy; what is done about it. Time and signs of life are invented here; nothing runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper import gate
from bistream.keeper.hangs import (
    HANG_TIMEOUT_S,
    MAX_STEP_S,
    WARN_AFTER_S,
    Hangs,
    HangWatch,
)
from bistream.keeper.served_models import CLOSING_S, ModelProcess, Sign
from bistream.keeper.server_process import KEEPALIVE_TIMEOUT_MS, TritonServer
from bistream.processes.control_files import LONGEST_STOP_S
from bistream.transport.channel_end import SEND_TIMEOUT_S
from gateway.session_stream import CLOSE_TIMEOUT_S

LOOK_S = 0.25


class Rehearsal:
    def __init__(self) -> None:
        self.now = 50.0
        self.watch = HangWatch(clock=lambda: self.now)

    def look(self, sign: Sign, after_s: float = LOOK_S) -> bool:
        """Whether the process hangs."""
        self.now += after_s
        return "process" in self.watch.look({"process": sign})

    def looks(self, signs: Iterable[Sign], after_s: float = LOOK_S) -> list[bool]:
        return [self.look(sign, after_s) for sign in signs]

    def seconds_until_hanging(self, sign: Sign, at_most_s: float) -> float | None:
        begin = self.now
        while self.now - begin < at_most_s:
            if self.look(sign):
                return self.now - begin
        return None


@pytest.mark.parametrize("silent", [Sign(7), Sign(7, is_stopped=True), Sign(None, is_stopped=True)])
def test_silence_is_noticed_in_time_for_callers_to_be_told_within_three_seconds_more(silent: Sign) -> None:
    rehearsal = Rehearsal()
    rehearsal.looks(Sign(count) for count in range(8))
    seconds = rehearsal.seconds_until_hanging(silent, 60.0)
    assert seconds is not None and HANG_TIMEOUT_S <= seconds <= LONGEST_STOP_S + 1.5


def test_no_other_time_out_is_shorter_than_the_longest_stop() -> None:
    others = (gate.HANG_TIMEOUT_S, CLOSE_TIMEOUT_S, KEEPALIVE_TIMEOUT_MS / 1000.0, SEND_TIMEOUT_S, CLOSING_S)
    assert min(HANG_TIMEOUT_S, *others) > LONGEST_STOP_S


@pytest.mark.parametrize("looks_per_s", [1, 2, 4, 10])
def test_the_longest_stop_is_survived(looks_per_s: int) -> None:
    rehearsal = Rehearsal()
    rehearsal.looks([Sign(1), Sign(2)])
    assert not any(rehearsal.looks([Sign(2, is_stopped=True)] * int(LONGEST_STOP_S) * looks_per_s, after_s=1.0 / looks_per_s))
    assert not any(rehearsal.looks([Sign(2)] * 2 * looks_per_s, after_s=1.0 / looks_per_s)), "it runs, and its next beat is on the way"
    assert not any(rehearsal.looks([Sign(count) for count in range(3, 100)]))


def test_a_busy_process_is_given_the_time_that_it_asked_for() -> None:
    rehearsal = Rehearsal()
    seconds = rehearsal.seconds_until_hanging(Sign(1, busy_s=100.0), 1000.0)
    assert seconds is not None and 100.0 + HANG_TIMEOUT_S <= seconds <= 100.0 + HANG_TIMEOUT_S + 3 * LOOK_S


def test_a_process_without_a_heartbeat_is_only_watched_for_stops() -> None:
    assert Rehearsal().seconds_until_hanging(Sign(None), 3600.0) is None


@given(st.lists(st.tuples(st.floats(0.01, 20.0), st.booleans()), max_size=200))
def test_only_silence_longer_than_the_limit_is_a_hang(looks: list[tuple[float, bool]]) -> None:
    rehearsal, count, silent_s = Rehearsal(), 0, 0.0
    rehearsal.look(Sign(count))
    for after_s, beats in looks:
        count += beats
        silent_s = 0.0 if beats else silent_s + min(after_s, MAX_STEP_S)
        hangs = rehearsal.look(Sign(count), after_s)
        assert hangs == (rehearsal.watch.silences()["process"] >= HANG_TIMEOUT_S)
        assert rehearsal.watch.silences()["process"] == pytest.approx(silent_s)


# A server

PROCESS, OTHER = ModelProcess(7, "token2wav"), ModelProcess(8, "llm_bistream")


class FakeServer:
    """No server answers at its address; ``answered`` is what its keeper has counted."""

    pid = os.getpid()
    http_url = "127.0.0.1:1"

    def __init__(self) -> None:
        self.seen: dict[ModelProcess, Sign] = {}
        self.now = 0.0
        self.killed: list[tuple[int, int]] = []
        server = cast(TritonServer, self)
        self.hangs = Hangs(server, HANG_TIMEOUT_S, clock=lambda: self.now, kill=lambda pid, number: self.killed.append((pid, number)))
        self.hangs._answers.stop()

    @property
    def models(self) -> FakeServer:
        return self

    def signs(self) -> dict[ModelProcess, Sign]:
        return self.seen

    def pass_time(self, seconds: float, answers: bool = True) -> list[str]:
        """One look per second; what they return."""
        reasons = []
        for _ in range(round(seconds)):
            self.now += 1.0
            self.hangs._answers.count += answers
            self.seen = {process: Sign(int(self.now) if process == OTHER else 1) for process in (PROCESS, OTHER)}
            reasons.append(self.hangs.look())
        return [reason for reason in reasons if reason is not None]


def test_a_silent_model_process_is_killed_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer()
    assert server.pass_time(WARN_AFTER_S + 2.0) == [] and server.killed == []
    assert len(caplog.messages) == 1 and "token2wav" in caplog.messages[0] and "llm_bistream" not in caplog.messages[0]
    assert server.pass_time(HANG_TIMEOUT_S - WARN_AFTER_S - 1.0) == []
    assert server.killed == [(PROCESS.pid, signal.SIGKILL)]


def test_a_server_that_does_not_answer_is_reported() -> None:
    server = FakeServer()
    reasons = server.pass_time(HANG_TIMEOUT_S + 2.0, answers=False)
    assert reasons and "The server has not answered" in reasons[0]
