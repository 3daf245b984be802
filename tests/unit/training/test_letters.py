"""Which letter is spoken, learned from texts and phones; and embeddings that know how a token is spelled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.letters import spoken_bytes
from training.phones import PHONES, SILENCE

SOUNDS = {letter: 1 + number for number, letter in enumerate("abcdefghijklmnop")}
Language = tuple[list[str], list[NDArray[np.uint8]], list[NDArray[np.int64]]]


def spoken(text: str, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Phones of a language in which some letters are mute, and the letter of each; now and then a pause before a word."""
    phones, places = list[int](), list[int]()
    for place, letter in enumerate(text):
        if letter in SOUNDS:
            if place and text[place - 1] == " " and random.random() < 0.3:
                phones += [SILENCE] * 2
                places += [place] * 2
            count = int(random.integers(1, 5))
            phones += [SOUNDS[letter]] * count
            places += [place] * count
    return np.array(phones, np.uint8), np.array(places)


@pytest.fixture(scope="module")
def language() -> Language:
    random = np.random.default_rng(3)
    words = ["".join(random.choice(list("abcdefghijklmnopqrst"), random.integers(1, 8))) for _ in range(300)]
    texts = [" ".join(random.choice(words, random.integers(1, 9))) + "." for _ in range(600)]
    pairs = [spoken(text, random) for text in texts]
    kept = [number for number, (phones, _) in enumerate(pairs) if len(phones)]
    return [texts[number] for number in kept], [pairs[number][0] for number in kept], [pairs[number][1] for number in kept]


def test_letters_are_found_without_a_lexicon(language: Language) -> None:
    texts, phones, places = language
    found, true = np.concatenate(spoken_bytes(texts, phones)).astype(int), np.concatenate(places)
    at_even_pace = np.concatenate([np.arange(len(item)) * len(text) // len(item) for text, item in zip(texts, phones, strict=True)])
    off, even_off = np.abs(found - true).mean(), np.abs(at_even_pace - true).mean()
    assert np.mean(found == true) > 0.85 and off < 0.2 < 1.0 < even_off  # a letter twice in a row is heard as one


@given(st.lists(st.tuples(st.text(max_size=12), st.lists(st.integers(0, len(PHONES) - 1), max_size=20)), max_size=5))
def test_letters_stay_in_the_text_and_never_go_back(pairs: list[tuple[str, list[int]]]) -> None:
    found = spoken_bytes([text for text, _ in pairs], [np.array(phones, np.uint8) for _, phones in pairs])
    for (text, phones), letters in zip(pairs, found, strict=True):
        assert len(letters) == len(phones) and (np.diff(letters.astype(int)) >= 0).all()
        assert not len(letters) or letters.max() < max(1, len(text.encode()))
