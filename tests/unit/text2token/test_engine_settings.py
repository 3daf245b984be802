"""Sizes of an engine that follow from the configuration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.text2token.engine_settings import settings_of, with_cache


@given(sessions=st.integers(1, 300), positions=st.integers(1, 5000), block=st.sampled_from((16, 32, 64)))
def test_a_cache_of_no_given_size_has_room_for_all_sessions_at_their_longest(sessions: int, positions: int, block: int) -> None:
    config = RuntimeConfig(max_sessions=sessions, max_session_tokens=positions)
    found = settings_of(config, LanguageModelConfig(), block)
    assert found.longest_sequence == positions
    assert found.num_blocks == sessions * found.blocks_per_sequence


@given(positions=st.integers(16, 5000))
def test_a_given_size_is_kept(positions: int) -> None:
    assert settings_of(RuntimeConfig(kv_cache_tokens=positions), LanguageModelConfig()).kv_cache_tokens == positions


@given(sessions=st.integers(1, 300), longest_s=st.floats(1, 600), most=st.integers(64, 5000))
def test_by_default_the_cache_is_as_large_as_the_longest_utterances_need(sessions: int, longest_s: float, most: int) -> None:
    config = with_cache(RuntimeConfig(max_sessions=sessions, max_session_tokens=most), longest_s, 25)
    longest_s = max(longest_s, config.max_reference_s)
    assert sessions * min(most, 50 * longest_s) <= config.kv_cache_tokens <= sessions * (min(most, 70 * longest_s) + 64)
    assert with_cache(config, 1.0, 25) == config  # a given size is kept
