"""The listener's buffer and the text that has certainly been spoken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.sessions.playback import Playback, SpokenEffort, SpokenText
from bistream.types import SpeechTokens
from tests.formats import AUDIO_FORMAT, SAMPLE_RATE, SAMPLES_PER_TOKEN

SETTINGS = settings(max_examples=20, deadline=None)


def test_a_listener_plays_from_the_first_chunk_and_waits_in_a_gap() -> None:
    playback = Playback(AUDIO_FORMAT.sample_rate)
    assert playback.buffer_s(5.0) == 0.0
    playback.sent(SAMPLE_RATE, 10.0)
    assert playback.buffer_s(10.25) == pytest.approx(0.75)
    playback.sent(SAMPLE_RATE, 10.5)
    assert playback.buffer_s(10.5) == pytest.approx(1.5)
    assert playback.buffer_s(20.0) == 0.0
    playback.sent(SAMPLE_RATE, 20.0)
    assert playback.buffer_s(20.0) == pytest.approx(1.0), "a gap is not made up for"
    assert playback.samples_sent == 3 * SAMPLE_RATE
    assert (playback.underruns, playback.underrun_s, playback.longest_underrun_s) == (1, 8.0, 8.0)


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, SAMPLE_RATE), st.floats(0, 2)), max_size=10))
def test_the_buffer_is_what_was_sent_minus_what_was_played(chunks: list[tuple[int, float]]) -> None:
    """Sample-exact bookkeeping replaces a listener simulated millisecond by millisecond, which would be slow."""
    playback, now, left, dry = Playback(AUDIO_FORMAT.sample_rate), 0.0, 0.0, [0.0]
    for samples, pause_s in chunks:
        playback.sent(samples, now)
        assert playback.underrun_s == pytest.approx(sum(dry), abs=1e-6)
        assert playback.longest_underrun_s == pytest.approx(max(dry), abs=1e-6)
        left += samples / SAMPLE_RATE
        assert playback.buffer_s(now) == pytest.approx(left, abs=1e-9)
        now += pause_s
        dry.append(max(0.0, pause_s - left))
        left = max(0.0, left - pause_s)
        assert playback.buffer_s(now) == pytest.approx(left, abs=1e-9)


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=8),
    st.lists(st.integers(0, 30 * SAMPLES_PER_TOKEN), max_size=8),
)
def test_text_is_reported_as_spoken_only_with_all_its_tokens(messages: list[tuple[int, int]], chunks: list[int]) -> None:
    spoken, tokens, characters = SpokenText(SpokenEffort(), AUDIO_FORMAT), 0, 0
    marks = []
    for count, more in messages:
        tokens, characters = tokens + count, characters + more
        spoken.tokens_came(SpeechTokens((1,) * count, characters))
        marks.append((tokens, characters))
    samples = 0
    for chunk in chunks:
        samples += chunk
        expected = max((done for needed, done in marks if needed * SAMPLES_PER_TOKEN <= samples), default=0)
        assert spoken.characters(samples, is_last=False) == expected
    assert spoken.characters(samples, is_last=True) == characters
