"""The mark as a filter: the same samples however a stream is cut and with whatever it is batched, no delay, nothing above 2 kHz."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.types import FloatArray
from bistream.watermark.filter import FULL_SCALE, MarkFilter, MarkState, filter_taps, steady_gains_db
from bistream.watermark.library import BINS, load_weights

RATE, BLOCK, CPU = 24_000, 480, torch.device("cpu")
GAINS_DB = np.random.default_rng(0).choice([-1.8, 1.8], BINS)
TAPS = filter_taps(GAINS_DB, RATE)
FILTER = MarkFilter(TAPS, BLOCK, CPU)
SOUND = (0.1 * np.random.default_rng(1).standard_normal(20 * BLOCK)).astype(np.float32)


def in_pieces(sound: FloatArray, cuts: set[int]) -> FloatArray:
    state = FILTER.open()
    places = [0, *sorted(cuts), len(sound)]
    return np.concatenate([FILTER.push([state], [sound[start:end]])[0] for start, end in pairwise(places)])


def spectrum_db(taps: NDArray[np.float64]) -> NDArray[np.float64]:
    """In bins an eighth as wide as those of the gains."""
    return np.asarray(20 * np.log10(np.abs(np.fft.rfft(taps, 8 * len(taps)))))


WHOLE = FILTER.push([FILTER.open()], [SOUND])[0]


@given(first=st.integers(1, 2 * BLOCK), cuts=st.sets(st.integers(1, len(SOUND) // BLOCK - 2), max_size=12))
def test_later_cuts_between_blocks_change_no_bit(first: int, cuts: set[int]) -> None:
    """Blocks count from the end of the first piece."""
    np.testing.assert_array_equal(in_pieces(SOUND, {first, *(first + BLOCK * cut for cut in cuts)}), in_pieces(SOUND, {first}))


@given(cuts=st.sets(st.integers(0, len(SOUND)), max_size=12))
def test_cuts_elsewhere_change_the_rounding_alone(cuts: set[int]) -> None:
    np.testing.assert_allclose(in_pieces(SOUND, cuts), WHOLE, rtol=0, atol=1e-6)  # float32 sums of 2400 samples


@given(lengths=st.lists(st.integers(0, 3 * BLOCK), max_size=4))
def test_sessions_of_a_batch_do_not_hear_each_other(lengths: list[int]) -> None:
    sounds = [SOUND[7 * index : 7 * index + length] for index, length in enumerate(lengths)]
    for state_before in (FILTER.open, lambda: after(SOUND)):
        found = FILTER.push([state_before() for _ in sounds], sounds)
        for sound, marked in zip(sounds, found, strict=True):
            np.testing.assert_allclose(marked, FILTER.push([state_before()], [sound])[0], rtol=0, atol=1e-6)


def after(sound: FloatArray) -> MarkState:
    state = FILTER.open()
    FILTER.push([state], [sound])
    return state


def test_it_is_the_filter_of_its_taps_without_delay() -> None:
    np.testing.assert_allclose(WHOLE, np.convolve(SOUND, TAPS)[: len(SOUND)], rtol=0, atol=1e-6)
    assert abs(TAPS[0]) > 0.9 and np.abs(TAPS[1:]).max() < 0.2  # the sound itself, then the mark behind it


def test_loud_sound_stays_in_full_scale() -> None:
    assert np.abs(FILTER.push([FILTER.open()], [20 * SOUND])[0]).max() <= np.float32(FULL_SCALE)


def test_the_gains_are_those_of_the_bins_and_nothing_lies_above_them() -> None:
    for rate in (16_000, RATE):
        found = spectrum_db(filter_taps(GAINS_DB, rate))
        np.testing.assert_allclose(found[: 8 * BINS : 8], GAINS_DB, atol=0.7)  # cut off after 64 ms
        assert np.abs(found[8 * (BINS + 4) :]).max() < 0.05


def test_the_package_marks_with_a_comb_of_a_few_decibels() -> None:
    gains = steady_gains_db(load_weights())
    assert gains.shape == (BINS,) and 1.5 < gains.std() < 2.2 and np.abs(gains).max() < 5.0
