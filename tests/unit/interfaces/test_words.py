"""Times of words, told while the audio is made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.exchange import Chunk
from bistream.client.word_times import word_times
from interfaces.protocols.words import WordTimes
from tests.formats import SAMPLE_RATE

TEXT = st.text(alphabet="ab c.你好", max_size=30)
STEPS = st.lists(st.tuples(st.integers(0, 48), st.integers(0, 8)), max_size=10)  # duration in multiples of 10 ms, characters


@given(TEXT, STEPS, st.lists(st.integers(0, 30), max_size=3))
def test_every_word_is_told_once_in_order_and_within_the_audio(text: str, steps: list[tuple[int, int]], cuts: list[int]) -> None:
    times, audio_ms, position = WordTimes(), 0.0, 0
    bounds = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    pieces = [text[left:right] for left, right in zip(bounds, bounds[1:], strict=False)]
    given_out, words = "", []
    for step, more in steps:
        if pieces:
            piece = pieces.pop(0)
            given_out += piece
            times.append(piece)
        audio_ms, position = audio_ms + 10 * step, min(position + more, len(given_out))
        told = times.next(10 * step, position)
        assert all(word.end <= position for word in told)  # no word before the voice is past it
        words += told
    for piece in pieces:
        times.append(piece)
    words += times.finish()
    assert "".join(word.text for word in words) == "".join(text.split())
    assert all(text[word.begin : word.end] == word.text for word in words)
    assert all(0 <= word.begin_ms <= word.end_ms <= audio_ms for word in words)
    assert all(before.end_ms <= after.begin_ms for before, after in zip(words, words[1:], strict=False))


def test_a_word_ends_with_its_last_letter() -> None:
    """The marks behind it are a pause; a mark that stands alone takes its time."""
    times = WordTimes()
    times.append("Yes, 'no'. - ab")
    words = [*times.next(1500, 15), *times.finish()]
    assert [(word.text, word.begin_ms, word.end_ms) for word in words] == [
        ("Yes,", 0.0, 300.0), ("'no'.", 500.0, 800.0), ("-", 1100.0, 1200.0), ("ab", 1300.0, 1500.0)
    ]  # fmt: skip


@given(st.text(alphabet="ab c.你", min_size=1, max_size=20), st.sets(st.integers(1, 19)), st.integers(1, 50))
def test_of_a_voice_that_goes_on_the_times_are_those_of_the_client_library(text: str, stops: set[int], step: int) -> None:
    times, chunks, words = WordTimes(), [], []
    times.append(text)
    for number, position in enumerate(sorted({stop for stop in stops if stop < len(text)} | {len(text)})):
        words += times.next(10 * step, position)
        chunks.append(Chunk(np.zeros(step * SAMPLE_RATE // 100, np.float32), number, 0, 0.0, position))
    words += times.finish()
    expected = word_times(text, chunks, SAMPLE_RATE)
    assert [word.text for word in words] == [word.word for word in expected]
    for word, other in zip(words, expected, strict=True):
        assert (word.begin_ms, word.end_ms) == pytest.approx((1000 * other.begin_s, 1000 * other.end_s))
