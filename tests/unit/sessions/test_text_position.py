"""Where the voice is: the estimate against synthetic alignments, and its bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.rates import SAMPLES_PER_TOKEN
from bistream.sessions.hop_pacing import TextPace
from bistream.sessions.playback import USUAL_PACE, SpokenEffort, SpokenText, pace_of, position, weight_of
from bistream.types import FinishReason, SpeechTokens, VoicePrompt

ENGLISH = (
    "The train to the coast leaves at nine, and it takes about two hours. If you want a seat by the window, come early; "
    "otherwise you will stand until the second stop, where most people get off. Bring something to read."
)
CHINESE = "早上好，今天的天气很好。我们先去公园散步，然后在河边吃午饭，下午再去图书馆看书。晚上如果不下雨，就去看电影吧。"
TRANSCRIPTS = {
    ENGLISH: "My grandmother had a small garden behind the house, and in summer we were there every day.",
    CHINESE: "我家后面有一个小花园，夏天我们每天都在那里玩。",
}


def spoken(text: str, pace: float, chance: random.Random) -> list[float]:
    """Speech tokens after each character: durations that vary by a third around those of the weights, at a pace of its own, which varies by
    15 % from word to word."""
    ends, now, word_pace = [], 0.0, pace
    for character in text:
        if character == " " or character in "，。":
            word_pace = pace * chance.uniform(0.85, 1.15)
        now += weight_of(character) / word_pace * chance.uniform(2 / 3, 4 / 3)
        ends.append(now)
    return ends


def errors(text: str, knows_total: bool, chance: random.Random) -> list[float]:
    """In characters, each half second of one utterance in a voice whose recording is 10 % faster or slower than the utterance."""
    pace = USUAL_PACE * chance.uniform(0.7, 1.4)
    prompt_tokens = round(spoken(TRANSCRIPTS[text], pace * chance.uniform(0.9, 1.1), chance)[-1])
    ends = spoken(text, pace, chance)
    effort = SpokenEffort()
    effort.push(text)
    total = (round(ends[-1]), len(text)) if knows_total else None
    voice_pace = pace_of(TRANSCRIPTS[text], prompt_tokens)
    truth = [int(np.searchsorted(ends, tokens)) for tokens in range(12, int(ends[-1]), 12)]
    found = [position(effort, tokens, voice_pace, total, (0, len(text))) for tokens in range(12, int(ends[-1]), 12)]
    return [abs(one - other) for one, other in zip(found, truth, strict=True)]


@pytest.mark.parametrize(("text", "running", "known"), [(ENGLISH, 8.0, 3.0), (CHINESE, 3.0, 1.5)])
def test_the_error_on_synthetic_alignments(text: str, running: float, known: float) -> None:
    """Mean errors in characters: while the session runs, and once its last token is known. docs/log/voice.md states them."""
    chance = random.Random(7)
    assert np.mean([np.mean(errors(text, False, chance)) for _ in range(100)]) < running
    assert np.mean([np.mean(errors(text, True, chance)) for _ in range(100)]) < known


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.floats(0, 500), st.floats(0.2, 2), st.integers(0, 60), st.integers(0, 60))
def test_the_estimate_keeps_its_bounds_and_grows_with_the_speech(text: str, tokens: float, pace: float, one: int, other: int) -> None:
    effort, bounds = SpokenEffort(), (min(one, other), max(one, other))
    effort.push(text)
    found = position(effort, tokens, pace, None, bounds)
    assert bounds[0] <= found <= bounds[1]
    assert found <= position(effort, tokens + 5.0, pace, None, bounds)


def test_a_transcript_that_says_something_else_is_no_measure() -> None:
    assert pace_of("", 100) == pace_of("Hi.", 0) == USUAL_PACE
    assert pace_of("Hi.", 1000) == 0.5 * USUAL_PACE
    assert pace_of("word " * 400, 10) == 2.0 * USUAL_PACE


def block(number: int, text_fed: int) -> SpeechTokens:
    return SpeechTokens((1,) * 15, (number * 15 + 15) // 20, None, False, text_fed, text_fed // 4)


def test_text_that_the_model_had_not_been_given_was_not_spoken() -> None:
    """A fast voice, five text tokens of four letters for each 15 speech tokens: at the end of a block no character of the next one."""
    effort = SpokenEffort()
    effort.push("x" * 200)
    text = SpokenText(effort)
    text.voice_ready(VoicePrompt("x" * 60, np.zeros(25, np.int32), np.zeros((50, 80), np.float32), np.zeros(192, np.float32)))
    for number in range(4):
        text.tokens_came(block(number, 20 * (number + 1)))
    at = [text.position(tokens * SAMPLES_PER_TOKEN, False) for tokens in (0, 7, 15, 16, 30, 45, 60)]
    assert at == [0, 9, 18, 20, 36, 54, 72], "1.2 letters for each token"
    text.tokens_came(SpeechTokens((1,) * 40, 200, FinishReason.EOS, False, 200, 50))
    assert text.position(60 * SAMPLES_PER_TOKEN, False) == 80, "what a block had been given"
    assert text.position(80 * SAMPLES_PER_TOKEN, False) == 160, "in proportion to the whole"
    assert text.position(100 * SAMPLES_PER_TOKEN, False) == text.position(99 * SAMPLES_PER_TOKEN, True) == 200


def test_what_the_model_attends_to_counts_before_the_pace() -> None:
    """Between two messages in proportion; bounded as every estimate; without a voice's pace."""
    effort = SpokenEffort()
    effort.push("x" * 200)
    text = SpokenText(effort)
    text.tokens_came(SpeechTokens((1,) * 15, 0, None, False, 40, 10, text_attended=9))
    text.tokens_came(SpeechTokens((1,) * 10, 1, None, False, 40, 10, text_attended=19))
    text.tokens_came(SpeechTokens((1,) * 5, 1, None, False, 40, 10, text_attended=60))
    at = [text.position(tokens * SAMPLES_PER_TOKEN, False) for tokens in (0, 5, 15, 20, 25, 30)]
    assert at == [0, 3, 9, 14, 19, 40], "it cannot be beyond the text that the model was given"
    text.tokens_came(SpeechTokens((1,) * 10, 200, FinishReason.EOS, False, 200, 50, text_attended=190))
    assert text.position(35 * SAMPLES_PER_TOKEN, False) == 125 and text.position(40 * SAMPLES_PER_TOKEN, False) == 200
    assert text.position(40 * SAMPLES_PER_TOKEN, True) == 200


def test_when_the_next_block_is_expected() -> None:
    pace = TextPace()
    assert pace.next_block_s(0, 0, 1.0) is None
    pace.came(20, 10.0)
    assert pace.next_block_s(20, 5, 10.5) is None, "one piece has no pace"
    pace.came(30, 11.0)
    assert pace.next_block_s(20, 5, 11.0) == pytest.approx(1.4), "of six tokens with four characters each, ten are there"
    assert pace.next_block_s(20, 5, 13.0) == pytest.approx(4.2), "a pause counts"
    pace.came(44, 13.0)
    assert pace.next_block_s(20, 5, 13.0) == 0.0
