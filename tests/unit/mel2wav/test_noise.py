"""The noise of the vocoder: a known generator, normally distributed, the same however it is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.mel2wav.noise import SAMPLES_PER_COUNTER, key_of_seed, normal_noise, philox4x32

ALL_ONES = 0xFFFFFFFF
# Known answers published with the Random123 library (kat_vectors, philox4x32 10).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def noise(seed: int, first: int, count: int) -> torch.Tensor:
    return normal_noise(torch.tensor([key_of_seed(seed)]), torch.tensor([first]), count)[0]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    c0, c1, c2, c3, k0, k1 = (torch.tensor(word) for word in counter + key)
    words = philox4x32((c0, c1, c2, c3), (k0, k1))
    assert tuple(int(word) for word in words) == answer


@settings(max_examples=12)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.integers(1, 200), st.integers(0, 150))
def test_a_piece_of_the_sequence_is_the_same_wherever_it_is_cut(seed: int, first: int, count: int, skip: int) -> None:
    first, count, skip = (value * SAMPLES_PER_COUNTER for value in (first, count, skip))
    whole = noise(seed, first, skip + count)
    assert torch.equal(whole[skip:], noise(seed, first + skip, count))


def test_it_is_standard_normal_and_white() -> None:
    sample = noise(7, 0, 400_000).double()
    assert abs(sample.mean()) < 0.01
    assert abs(sample.std() - 1) < 0.01
    assert abs((sample**4).mean() - 3) < 0.1  # kurtosis of a normal
    assert sample.abs().max() > 4
    for lag in (1, 2, 3, 4, 480):
        assert abs((sample[lag:] * sample[:-lag]).mean()) < 0.01


def test_seeds_are_independent() -> None:
    sequences = torch.stack([noise(seed, 0, 40_000) for seed in (0, 1, 2**32, -1)])
    off_diagonal = torch.corrcoef(sequences) - torch.eye(len(sequences))
    assert off_diagonal.abs().max() < 0.03
