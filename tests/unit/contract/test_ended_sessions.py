"""A late request is told how its session ended, and a session what an earlier one left behind: both memories are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.earlier_sessions import KEPT_S, EarlierSessions
from bistream.contract.ended_sessions import EndedSessions
from bistream.errors import BistreamError, BusyError, CancelledError, EngineError, SessionTimeoutError, UnknownSessionError


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (None, UnknownSessionError),
        (CancelledError("The client's stream is gone."), CancelledError),
        (SessionTimeoutError("Nothing came; start again."), SessionTimeoutError),
        (EngineError("It broke; try again."), EngineError),
        (BusyError("No memory; try again later."), BusyError),
    ],
)
def test_a_late_request_gets_the_code_of_the_end(end: BistreamError | None, kind: type[BistreamError]) -> None:
    ended = EndedSessions()
    ended.add("s", end)
    late = ended.error_of("s", "s")
    assert (type(late), late.session_id) == (kind, "s")
    assert late is not end
    assert type(ended.error_of("other", "other")) is UnknownSessionError


def test_an_id_that_is_live_again_is_forgotten() -> None:
    ended = EndedSessions()
    ended.add("s", CancelledError("x"))
    ended.discard("s")
    ended.discard("never")
    assert type(ended.error_of("s", "s")) is UnknownSessionError


def test_the_oldest_are_forgotten_first() -> None:
    ended = EndedSessions(capacity=3)
    for number in range(5):
        ended.add(str(number), CancelledError("x"))
    assert [type(ended.error_of(str(number), "s")) for number in range(5)] == [UnknownSessionError] * 2 + [CancelledError] * 3


@given(ends=st.lists(st.tuples(st.integers(0, 5), st.floats(0, KEPT_S)), max_size=40), capacity=st.integers(1, 6), later_s=st.floats(0, 90))
def test_the_last_ends_of_a_minute_are_found_and_nothing_else(ends: list[tuple[int, float]], capacity: int, later_s: float) -> None:
    now = 0.0
    table = EarlierSessions[int](lambda: now, capacity)
    last: dict[int, tuple[float, int]] = {}
    for number, (key, pause_s) in enumerate(ends):
        now += pause_s
        table.add(key, number)
        last.pop(key, None)
        last[key] = now, number
        assert len(table) <= capacity
    now += later_s
    kept = dict(list(last.items())[-capacity:])
    for key in range(6):
        ended_at, number = kept.get(key, (-1e9, -1))
        assert table.find(key) == (number if now - ended_at <= KEPT_S else None)


def test_what_is_too_old_is_given_back_when_others_end() -> None:
    now = 0.0
    table = EarlierSessions[str](lambda: now)
    table.add("a", "left")
    now = KEPT_S + 1
    table.add("b", "left")
    assert len(table) == 1
