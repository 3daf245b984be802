"""Batches of a few sizes: which recordings share one, and that each gets what it gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.voice.campplus_network import FRAME_UNIT
from bistream.voice.fixed_sizes import FRAMES, MOST_FRAMES, UNIT, BatchSize, FixedSizes, batch_sizes, frames_for, pieces, size_for

CPU = torch.device("cpu")
SIZES = batch_sizes(torch.device("cuda"))  # a list: no GPU is asked
LENGTHS = st.lists(st.integers(1, 3200), min_size=1, max_size=20)


def test_sizes() -> None:
    assert batch_sizes(CPU) == []
    assert all(size.area <= MOST_FRAMES and size.frames % UNIT == 0 for size in SIZES)
    assert [size.area for size in SIZES] == sorted(size.area for size in SIZES), "the first that fits is the smallest"
    assert {size.frames for size in SIZES if size.rows == 1} == set(FRAMES), "every recording of up to 30 s has a size of its own"
    assert UNIT % FRAME_UNIT == 0, "the speaker encoder's segments"


@given(count=st.integers(1, 10_000))
def test_frames_that_a_count_is_filled_up_to(count: int) -> None:
    assert frames_for(count) >= count and frames_for(count) % UNIT == 0
    assert count > FRAMES[-1] or frames_for(count) in FRAMES


@given(LENGTHS, st.booleans())
def test_every_recording_is_in_one_piece_that_has_a_size(lengths: list[int], are_fixed: bool) -> None:
    sizes = SIZES if are_fixed else []
    found = list(pieces(lengths, sizes))
    assert sorted(position for piece in found for position in piece) == list(range(len(lengths)))
    for piece in found:
        size = size_for([lengths[position] for position in piece], sizes)
        assert size.rows >= len(piece) and size.frames >= max(lengths[position] for position in piece)
        assert size.area <= MOST_FRAMES or len(piece) == 1
        assert not are_fixed or size in SIZES or (size.frames > FRAMES[-1] and len(piece) == 1)


class Sums:
    """The sum of a recording's frames and its length; notes the sizes it is called with."""

    def __init__(self) -> None:
        self.sizes: list[BatchSize] = []

    def __call__(self, features: Tensor, lengths: Tensor) -> Tensor:
        self.sizes.append(BatchSize(features.shape[1], len(features)))
        return torch.stack([features.double().sum((1, 2)), lengths.double()], dim=1)


@settings(max_examples=15)
@given(LENGTHS, st.booleans())
def test_each_recording_gets_its_own_row(lengths: list[int], are_fixed: bool) -> None:
    network = Sums()
    run = FixedSizes("sums", network, 2, CPU, SIZES if are_fixed else ())
    arrays: list[Any] = [np.full((length, 2), index + 1, np.float32) for index, length in enumerate(lengths)]
    arrays[0] = torch.from_numpy(arrays[0])
    for _ in range(2):  # what the first batch left behind must not count
        for index, (row, length) in enumerate(zip(run(arrays), lengths, strict=True)):
            assert row.tolist() == [2.0 * length * (index + 1), length]
    if are_fixed and max(lengths) <= FRAMES[-1]:
        assert set(network.sizes) <= set(SIZES)
