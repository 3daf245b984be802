"""The voice ends by itself, after about as long as its teacher takes; and the pieces of a text change nothing. Speech tokens alone."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from bistream.types import FinishReason
from tests.voice.speaking import Spoken, T, VoiceUnderTest, together, words_with_blanks
from training.heldout import sentences

SETS = ("a", "b")  # sentences that training never saw
NEAR, NEAR_SHARE = 0.25, 0.9  # of the teacher's length, in so many of the sentences
LONGEST, LONGEST_SHARE = 1.6, 0.99
CUT = 12  # sentences in every kind of pieces
ROUNDS = int(os.environ.get("BISTREAM_VOICE_ROUNDS", "0"))  # of all 200; 3: six hundred sessions, five minutes on one core
FEW = 50  # of each set, without it


def of_sets(each: Sequence[T]) -> list[T]:
    """Of something for every sentence of a set, what is used here."""
    return list(each) * ROUNDS or list(each[:FEW])


@pytest.fixture(scope="module")
def spoken(voice: VoiceUnderTest) -> dict[str, list[Spoken]]:
    """Word by word, with seeds of its own in each round."""
    texts = {name: of_sets(sentences(name)) for name in SETS}
    return {name: together(voice.speak, map(words_with_blanks, each), range(len(each))) for name, each in texts.items()}


def test_every_sentence_ends_by_itself(spoken: dict[str, list[Spoken]]) -> None:
    reasons = {f"{name}{number}": one.finish_reason for name in SETS for number, one in enumerate(spoken[name])}
    assert len(reasons) == (200 * ROUNDS or 2 * FEW)
    assert {name: reason for name, reason in reasons.items() if reason is not FinishReason.EOS} == {}


def test_lengths_are_those_of_the_teacher(spoken: dict[str, list[Spoken]], teacher_s: dict[str, list[float]]) -> None:
    ratios = np.array([one.seconds / wanted for name in SETS for one, wanted in zip(spoken[name], of_sets(teacher_s[name]), strict=True)])
    assert np.mean(np.abs(ratios - 1) <= NEAR) >= NEAR_SHARE, np.sort(ratios)
    assert np.mean(ratios <= LONGEST) >= LONGEST_SHARE, np.sort(ratios)


def test_pieces_of_any_size_give_the_same_tokens(voice: VoiceUnderTest, spoken: dict[str, list[Spoken]]) -> None:
    texts, seeds = sentences("b")[:CUT], range(CUT)
    by_words = spoken["b"][:CUT]
    assert together(voice.speak, map(list, texts), seeds) == by_words
    assert together(voice.speak, ([text] for text in texts), seeds) == by_words


def test_one_shot_layout_ends_as_well(voice: VoiceUnderTest, teacher_s: dict[str, list[float]]) -> None:
    texts = sentences("b")[:CUT]
    spoken = together(lambda text, seed: voice.speak([text], seed, is_whole=True), texts, range(CUT))
    assert {text: one.finish_reason for text, one in zip(texts, spoken, strict=True) if one.finish_reason is not FinishReason.EOS} == {}
    ratios = np.array([one.seconds for one in spoken]) / teacher_s["b"][:CUT]
    assert np.median(np.abs(ratios - 1)) <= NEAR, ratios
