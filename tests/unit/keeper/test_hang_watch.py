"""When a process counts as hanging. Time and signs of life are invented here; nothing runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper.hang_watch import HANG_TIMEOUT_S, MAX_STEP_S, HangWatch, Sign

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


def test_a_process_that_beats_never_hangs() -> None:
    assert not any(Rehearsal().looks(Sign(count) for count in range(1000)))


@pytest.mark.parametrize("silent", [Sign(7), Sign(7, is_stopped=True), Sign(None, is_stopped=True)])
def test_silence_is_noticed_in_time_for_callers_to_be_told_within_twelve_seconds(silent: Sign) -> None:
    rehearsal = Rehearsal()
    rehearsal.looks(Sign(count) for count in range(8))
    seconds = rehearsal.seconds_until_hanging(silent, 60.0)
    assert seconds is not None and HANG_TIMEOUT_S <= seconds <= 11.5


@pytest.mark.parametrize("looks_per_s", [1, 2, 4, 10])
def test_a_stop_of_ten_seconds_is_survived(looks_per_s: int) -> None:
    rehearsal = Rehearsal()
    rehearsal.looks([Sign(1), Sign(2)])
    assert not any(rehearsal.looks([Sign(2, is_stopped=True)] * 10 * looks_per_s, after_s=1.0 / looks_per_s))
    assert not any(rehearsal.looks([Sign(2)] * 2 * looks_per_s, after_s=1.0 / looks_per_s)), "it runs, and its next beat is on the way"
    assert not any(rehearsal.looks([Sign(count) for count in range(3, 100)]))


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The machine was suspended, or the keeper itself was stopped."""
    rehearsal = Rehearsal()
    rehearsal.look(Sign(1))
    assert not rehearsal.look(Sign(1), after_s=3600.0)
    assert rehearsal.watch.silences() == {"process": MAX_STEP_S}


def test_a_busy_process_is_given_the_time_that_it_asked_for() -> None:
    rehearsal = Rehearsal()
    seconds = rehearsal.seconds_until_hanging(Sign(1, busy_s=100.0), 1000.0)
    assert seconds is not None and 100.0 + HANG_TIMEOUT_S <= seconds <= 100.0 + HANG_TIMEOUT_S + 3 * LOOK_S


def test_a_stopped_process_is_not_busy() -> None:
    seconds = Rehearsal().seconds_until_hanging(Sign(1, is_stopped=True, busy_s=100.0), 1000.0)
    assert seconds is not None and seconds <= 11.5


def test_a_process_without_a_heartbeat_is_only_watched_for_stops() -> None:
    assert Rehearsal().seconds_until_hanging(Sign(None), 3600.0) is None


def test_processes_do_not_disturb_each_other_and_are_forgotten_with_their_end() -> None:
    watch = HangWatch(limit_s=1.0, clock=iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).__next__)
    watch.look({"one": Sign(1), "two": Sign(1)})
    assert set(watch.look({"one": Sign(1), "two": Sign(2)})) == {"one"}
    assert set(watch.look({"two": Sign(2)})) == {"two"}
    assert watch.look({"one": Sign(1), "two": Sign(3)}) == {}, "a new process"


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
