"""A client that cross-fades hears the audio that was sent, whatever pieces it came in."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from bistream.transport.overlap import OverlappingChunks
from bistream.types import FloatArray
from tests.triton.upstream_clients import SPARK_FADE, cross_faded

PIECES = st.lists(st.integers(0, 30), max_size=12)
OVERLAPS = st.integers(1, 12)


def made(lengths: list[int], overlap: int) -> tuple[FloatArray, list[FloatArray]]:
    """The audio, and its chunks."""
    audio = np.random.default_rng(len(lengths)).uniform(-1, 1, sum(lengths)).astype(np.float32)
    chunks = OverlappingChunks(overlap)
    sent = [chunks.push(piece) for piece in np.split(audio, np.cumsum(lengths)[:-1])] if lengths else []
    return audio, [chunk for chunk in (*sent, chunks.end()) if chunk.size]


@given(PIECES, OVERLAPS)
@example([16000, 320], SPARK_FADE)
@example([16000, 1600, 0, 1], SPARK_FADE)
@example([1599, 1600, 3200, 3201], SPARK_FADE)
def test_the_client_plays_the_audio_and_nothing_twice(lengths: list[int], overlap: int) -> None:
    audio, chunks = made(lengths, overlap)
    if chunks:
        np.testing.assert_allclose(cross_faded(chunks, overlap), audio, rtol=0, atol=1e-7)
    else:
        assert audio.size == 0


@given(PIECES, OVERLAPS)
def test_a_chunk_begins_with_the_end_of_the_one_before_and_brings_as_much_again(lengths: list[int], overlap: int) -> None:
    _, chunks = made(lengths, overlap)
    for before, chunk in itertools.pairwise(chunks):
        assert np.array_equal(before[-overlap:], chunk[:overlap]) and before.size >= overlap and chunk.size >= 2 * overlap


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), OVERLAPS)
def test_no_more_waits_than_the_next_chunk_may_need(lengths: list[int], overlap: int) -> None:
    chunks, sent = OverlappingChunks(overlap), 0
    for number, length in enumerate(lengths):
        if (chunk := chunks.push(np.zeros(length, np.float32))).size:
            sent += chunk.size - (overlap if sent else 0)
        waiting = sum(lengths[: number + 1]) - sent
        assert waiting == overlap if chunk.size else waiting < 2 * overlap
