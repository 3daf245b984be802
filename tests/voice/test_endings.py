"""The voice ends by itself, after about as long as its teacher takes; and the pieces of a text change nothing. Speech tokens alone."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bistream.types import FinishReason
from tests.voice.speaking import Spoken, VoiceUnderTest, words_with_blanks
from training.heldout import sentences

SETS = ("a", "b")  # 200 sentences that training never saw
NEAR, NEAR_SHARE = 0.25, 0.9  # of the teacher's length, in so many of the sentences
LONGEST, LONGEST_SHARE = 1.6, 0.99
CUT = 12  # sentences in every kind of pieces
ROUNDS = int(os.environ.get("BISTREAM_VOICE_ROUNDS", "1"))  # 3: six hundred sessions, five minutes on one core


@pytest.fixture(scope="module")
def spoken(voice: VoiceUnderTest) -> dict[str, list[Spoken]]:
    """Every sentence word by word, with seeds of its own in each round."""
    return {name: [voice.speak(words_with_blanks(text), seed) for seed, text in enumerate([*sentences(name)] * ROUNDS)] for name in SETS}


def test_every_sentence_ends_by_itself(spoken: dict[str, list[Spoken]]) -> None:
    reasons = {f"{name}{number}": one.finish_reason for name in SETS for number, one in enumerate(spoken[name])}
    assert len(reasons) == 200 * ROUNDS
    assert {name: reason for name, reason in reasons.items() if reason is not FinishReason.EOS} == {}


def test_lengths_are_those_of_the_teacher(spoken: dict[str, list[Spoken]], teacher_s: dict[str, list[float]]) -> None:
    ratios = np.array([one.seconds / wanted for name in SETS for one, wanted in zip(spoken[name], teacher_s[name] * ROUNDS, strict=True)])
    assert np.mean(np.abs(ratios - 1) <= NEAR) >= NEAR_SHARE, np.sort(ratios)
    assert np.mean(ratios <= LONGEST) >= LONGEST_SHARE, np.sort(ratios)


def test_pieces_of_any_size_give_the_same_tokens(voice: VoiceUnderTest, spoken: dict[str, list[Spoken]]) -> None:
    for number, text in enumerate(sentences("b")[:CUT]):
        by_words = spoken["b"][number]
        assert voice.speak(list(text), number) == by_words, text
        assert voice.speak([text], number) == by_words, text


def test_one_shot_layout_ends_as_well(voice: VoiceUnderTest, teacher_s: dict[str, list[float]]) -> None:
    ratios = []
    for number, text in enumerate(sentences("b")[:CUT]):
        one = voice.speak([text], number, is_whole=True)
        assert one.finish_reason is FinishReason.EOS, text
        ratios.append(one.seconds / teacher_s["b"][number])
    assert np.median(np.abs(np.array(ratios) - 1)) <= NEAR, ratios
