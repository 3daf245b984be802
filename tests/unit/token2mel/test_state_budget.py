"""Properties of the flow's memory budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import ConfigError
from bistream.token2mel.state_budget import AUTO_MEMORY_SHARE, AUTO_SESSION_S, state_pages

MB = 2**20


@given(budget_mb=st.integers(1, 200_000), page_mb=st.integers(1, 100), free=st.integers(0, 10**12))
def test_a_budget_that_is_set_is_kept(budget_mb: int, page_mb: int, free: int) -> None:
    if budget_mb < page_mb:
        with pytest.raises(ConfigError, match="flow_state_mb"):
            state_pages(budget_mb, page_mb * MB, 1.0, 64, free)
        return
    pages = state_pages(budget_mb, page_mb * MB, 1.0, 64, free)
    assert pages * page_mb <= budget_mb < (pages + 1) * page_mb


@given(sessions=st.integers(1, 1000), page_mb=st.integers(1, 100), free_mb=st.integers(0, 200_000), page_s=st.sampled_from([0.5, 1.0, 2.0]))
def test_the_automatic_budget_fits_free_memory_and_the_need(sessions: int, page_mb: int, free_mb: int, page_s: float) -> None:
    allowed = int(free_mb * AUTO_MEMORY_SHARE) // page_mb
    if allowed < 1:
        with pytest.raises(ConfigError, match="free memory"):
            state_pages(0, page_mb * MB, page_s, sessions, free_mb * MB)
        return
    pages = state_pages(0, page_mb * MB, page_s, sessions, free_mb * MB)
    wanted = round(sessions * AUTO_SESSION_S / page_s)
    assert pages == wanted or (pages < wanted and pages * page_mb <= free_mb * AUTO_MEMORY_SHARE < (pages + 1) * page_mb + 1)


def test_sixty_four_sessions_on_a_large_gpu_have_thirty_seconds_each() -> None:
    assert state_pages(0, 30_050_000, 1.0, 64, 130 * 2**30) == 64 * 30


def test_the_automatic_budget_leaves_memory_to_others() -> None:
    assert state_pages(0, 1, 1.0, 1_000_000, 1000) == 700
