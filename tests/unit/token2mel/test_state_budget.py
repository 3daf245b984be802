"""Properties of the flow's memory budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import LanguageModelConfig
from bistream.errors import ConfigError
from bistream.token2mel.state_budget import (
    AUTO_MEMORY_SHARE,
    AUTO_SESSION_S,
    available_bytes,
    language_model_bytes,
    shortage,
    state_pages,
    unshared_session_s,
)

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
        with pytest.raises(ConfigError, match="available memory"):
            state_pages(0, page_mb * MB, page_s, sessions, free_mb * MB)
        return
    pages = state_pages(0, page_mb * MB, page_s, sessions, free_mb * MB)
    wanted = round(sessions * AUTO_SESSION_S / page_s)
    assert pages == wanted or (pages < wanted and pages * page_mb <= free_mb * AUTO_MEMORY_SHARE < (pages + 1) * page_mb + 1)


@given(sessions=st.integers(1, 100), longest_s=st.floats(1, 300), page_s=st.sampled_from([0.5, 1.0]))
def test_a_process_of_its_own_has_room_for_the_longest_session_and_no_less_than_a_server(
    sessions: int, longest_s: float, page_s: float
) -> None:
    session_s = unshared_session_s(sessions, longest_s)
    pages = state_pages(0, 1, page_s, sessions, 10**9, session_s)
    assert pages >= state_pages(0, 1, page_s, sessions, 10**9)
    assert pages * page_s > longest_s - page_s  # the rest is in no complete page
    assert session_s == AUTO_SESSION_S or session_s * sessions == pytest.approx(longest_s), "more than is needed"


def test_a_cache_for_800_sessions_leaves_an_h200_pages_for_242() -> None:
    """143,771 MiB, of which networks and contexts are assumed to have 4 GiB. With a cache for 400 sessions 256 have room."""

    def room(max_sessions: int) -> int:
        claimed = language_model_bytes(LanguageModelConfig(), max_sessions * 4096)
        available = available_bytes((143_771 - 4 * 1024) * 2**20 - claimed, 143_771 * 2**20, claimed)
        return state_pages(0, 30_051_328, 1.0, max_sessions, available) // 10

    assert room(800) == 242
    assert room(400) > 256


@given(pages=st.integers(1, 10_000), reserve=st.integers(1, 20), sessions=st.integers(1, 1000))
def test_too_few_pages_for_all_sessions_are_told(pages: int, reserve: int, sessions: int) -> None:
    sentence = shortage(pages, reserve, 1.0, sessions)
    assert (sentence is None) == (pages >= sessions * reserve)
    assert sentence is None or f"room for {pages // reserve} sessions" in sentence


@given(total=st.integers(1, 10**12), claimed=st.integers(0, 10**12), taken=st.booleans())
def test_the_order_in_which_models_load_does_not_matter(total: int, claimed: int, taken: bool) -> None:
    free = max(0, total - claimed) if taken else total
    assert available_bytes(free, total, claimed) == max(0, total - claimed)
