"""The listener's buffer, the text that has certainly been spoken, and where the voice is: the estimate and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.hops.text_pace import TextPace
from bistream.sessions.playback import Playback, SpokenEffort, SpokenText, pace_of, position, usual_pace
from bistream.types import FinishReason, SpeechBreak, SpeechTokens
from tests.formats import AUDIO_FORMAT, BLOCKS, SAMPLE_RATE, SAMPLES_PER_TOKEN

SETTINGS = settings(max_examples=20, deadline=None)
USUAL_PACE = usual_pace(AUDIO_FORMAT)


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


@SETTINGS
@given(st.text(max_size=60), st.floats(0, 500), st.floats(0.2, 2), st.integers(0, 60), st.integers(0, 60))
def test_the_estimate_keeps_its_bounds_and_grows_with_the_speech(text: str, tokens: float, pace: float, one: int, other: int) -> None:
    effort, bounds = SpokenEffort(), (min(one, other), max(one, other))
    effort.push(text)
    found = position(effort, tokens, pace, None, bounds)
    assert bounds[0] <= found <= bounds[1]
    assert found <= position(effort, tokens + 5.0, pace, None, bounds)


def test_a_transcript_that_says_something_else_is_no_measure() -> None:
    assert pace_of("", 100, AUDIO_FORMAT) == pace_of("Hi.", 0, AUDIO_FORMAT) == USUAL_PACE
    assert pace_of("Hi.", 1000, AUDIO_FORMAT) == 0.5 * USUAL_PACE
    assert pace_of("word " * 400, 10, AUDIO_FORMAT) == 2.0 * USUAL_PACE


def test_what_the_model_attends_to_counts_before_the_pace() -> None:
    """Between two messages in proportion; bounded as every estimate; without a voice's pace."""
    effort = SpokenEffort()
    effort.push("x" * 200)
    text = SpokenText(effort, AUDIO_FORMAT)
    text.tokens_came(SpeechTokens((1,) * 15, 0, None, False, 40, 10, text_attended=9))
    text.tokens_came(SpeechTokens((1,) * 10, 1, None, False, 40, 10, text_attended=19))
    text.tokens_came(SpeechTokens((1,) * 5, 1, None, False, 40, 10, text_attended=60))
    at = [text.position(tokens * SAMPLES_PER_TOKEN, False) for tokens in (0, 5, 15, 20, 25, 30)]
    assert at == [0, 3, 9, 14, 19, 40], "it cannot be beyond the text that the model was given"
    text.tokens_came(SpeechTokens((1,) * 10, 200, FinishReason.EOS, False, 200, 50, text_attended=190))
    assert text.position(35 * SAMPLES_PER_TOKEN, False) == 125 and text.position(40 * SAMPLES_PER_TOKEN, False) == 200
    assert text.position(40 * SAMPLES_PER_TOKEN, True) == 200


def test_what_is_said_before_a_break_is_spoken_when_its_silence_begins() -> None:
    """Also where the end of the text comes later, and however messages are joined."""
    filling = SpeechTokens((0, 0), 3, breaks=(SpeechBreak(0, 2, 500),))
    apart = [SpeechTokens((1, 2, 3), 1), filling]
    together = [SpeechTokens((1, 2, 3, 0, 0), 3, breaks=(SpeechBreak(3, 2, 500),))]
    for messages in (apart, together):
        spoken = SpokenText(SpokenEffort(), AUDIO_FORMAT)
        for message in messages:
            spoken.tokens_came(message)
        assert spoken.characters(3 * SAMPLES_PER_TOKEN - 1, is_last=False) < 3
        assert spoken.characters(3 * SAMPLES_PER_TOKEN, is_last=False) == 3
        spoken.tokens_came(SpeechTokens((), 20, FinishReason.EOS))
        assert spoken.characters(3 * SAMPLES_PER_TOKEN, is_last=False) == 20
        spoken.tokens_came(SpeechTokens((4,), 25))
        assert spoken.characters(5 * SAMPLES_PER_TOKEN, is_last=False) == 20
        assert spoken.characters(6 * SAMPLES_PER_TOKEN, is_last=False) == 25


def test_when_the_next_block_is_expected() -> None:
    pace = TextPace(BLOCKS.text_tokens)
    assert pace.next_block_s(0, 0, 1.0) is None
    pace.came(20, 10.0)
    assert pace.next_block_s(20, 5, 10.5) is None, "one piece has no pace"
    pace.came(30, 11.0)
    assert pace.next_block_s(20, 5, 11.0) == pytest.approx(1.4), "of six tokens with four characters each, ten are there"
    assert pace.next_block_s(20, 5, 13.0) == pytest.approx(4.2), "a pause counts"
    pace.came(44, 13.0)
    assert pace.next_block_s(20, 5, 13.0) == 0.0
