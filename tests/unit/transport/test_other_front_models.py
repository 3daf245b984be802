"""What a front model knows of the others' sessions, from what token2wav reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bistream.transport.other_front_models import REPORT_AGE_S, OtherFrontModels

EVENTS = st.lists(st.tuples(st.sampled_from(["open", "end", "foreign"]), st.integers(0, 9)), max_size=40)


@given(EVENTS)
def test_they_are_counted_as_they_were_when_the_report_came(events: list[tuple[str, int]]) -> None:
    now = [0.0]
    doors, own, foreign = OtherFrontModels(lambda: now[0]), set(), 0
    for what, number in events:
        if what == "open":
            own.add(number)
            doors.opened(str(number))
        elif what == "end":
            own.discard(number)
            doors.ended(str(number))
        else:
            foreign = number
            doors.reported(len(own) + foreign)
        now[0] += REPORT_AGE_S / 1000
        assert doors.sessions == foreign, "also when own ones have come and gone since"
    now[0] += REPORT_AGE_S + 1.0
    assert doors.sessions == 0, "the report is too old to tell"


def test_a_report_from_before_our_newest_session_does_not_make_them_fewer_than_none() -> None:
    doors = OtherFrontModels(lambda: 0.0)
    doors.opened("a")
    doors.reported(0)
    assert doors.sessions == 0
