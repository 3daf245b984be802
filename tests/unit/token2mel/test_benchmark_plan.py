"""The benchmark measures at most as many sessions as the flow has state for."""

from __future__ import annotations

import pytest

from benchmarks.token2wav import PLANS, fitting_plan


def test_a_plan_that_fits_is_left_alone() -> None:
    assert fitting_plan(PLANS["full"], 4000, 10) == PLANS["full"]


@pytest.mark.parametrize("pages", [1, 60, 450, 1680])
def test_a_plan_that_does_not_fit_has_fewer_sessions(pages: int) -> None:
    asked, plan = PLANS["full"], fitting_plan(PLANS["full"], pages, 10)
    for before, after, each in (
        (asked.sessions, plan.sessions, 10),
        (asked.growth_sessions, plan.growth_sessions, 20),
        (asked.load_sessions, plan.load_sessions, 10),
    ):
        assert 1 <= min(after) <= min(before) and max(after) <= max(before) and list(after) == sorted(set(after))
        assert max(after) * each <= pages or max(after) == 1
        assert set(after) - {max(after)} <= set(before), "only what does not fit is replaced"
