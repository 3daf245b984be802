"""What ended sessions leave behind: found for a minute, never more than the table holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.earlier_sessions import KEPT_S, EarlierSessions


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
