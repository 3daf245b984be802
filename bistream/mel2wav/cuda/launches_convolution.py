"""Launches of ``kernels_convolution.sum_windows``: locations of its inputs and results, and tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.gpu.tensor_tiles import tile_descriptor
from bistream.mel2wav.cuda import kernels_convolution
from bistream.mel2wav.cuda.batch import MAX_ACTIVES, MAX_RESIDUALS, SEGMENT_NUMBERS, SegmentField
from bistream.mel2wav.cuda.tuning import TILE_POSITIONS, shared_memory, tile_positions, window_share
from bistream.mel2wav.cuda.weights_tiles import SLICE, Part, WindowSum

_HALO = 16


@dataclass(frozen=True)
class Area:
    """Activations of one rate: ``memory`` [slots * capacity, channels]. real: int8 [capacity]; extent: int32 [1], positions in use."""

    memory: Tensor
    capacity: int
    real: Tensor
    extent: Tensor

    def slot(self, index: int) -> Tensor:
        return self.memory[index * self.capacity : (index + 1) * self.capacity]


@dataclass(frozen=True)
class Use:
    """Slots that a part reads and that a group's first part writes. residuals: added; out: the sum; actives: its activations."""

    source: int
    residuals: tuple[int, ...] = ()
    out: int | None = None
    actives: tuple[int, ...] = ()


class WindowLaunch:
    """One recorded launch. ``uses``: per group, one for each part. kind, scale, slope: see the kernel."""

    def __init__(
        self, sums: WindowSum, source: Area, target: Area, uses: Sequence[Sequence[Use]], kind: str = "snake", scale: float = 1.0,
        slope: float = 0.0,
    ) -> None:  # fmt: skip
        self._sums = sums
        self._target = target
        segments = len(uses[0])
        multiprocessors = torch.cuda.get_device_properties(sums.tiles.device).multi_processor_count
        size = tile_positions(target.capacity * sums.blocks * len(uses), multiprocessors)
        size = min(size, 128) if kind == "elu" else size  # "elu" keeps two sums in registers
        tiles = -(-target.capacity // size)
        products = [
            sum(part.taps * sums.panels + len(use.residuals) for part, use in zip(parts, members, strict=True))
            for parts, members in zip(sums.groups, uses, strict=True)
        ]
        can_share = size == TILE_POSITIONS[0] and segments == 1 and sums.panels <= 4
        share = window_share(tiles, sums.blocks, sums.panels, products, multiprocessors) if can_share else 1
        self._grid = (min(tiles * (sums.blocks // share) * len(uses), multiprocessors),)
        self._sizes = {
            "N": size, **shared_memory(size, sums.panels if share > 1 else 1), "PANELS": sums.panels, "BLOCKS": sums.blocks,
            "SHARE": share, "GROUPS": len(uses), "SEGMENTS": segments, "KIND": kind,
        }  # fmt: skip
        table = [
            _row(part, use, group, source.capacity, target.capacity)
            for group, (parts, members) in enumerate(zip(sums.groups, uses, strict=True))
            for part, use in zip(parts, members, strict=True)
        ]
        self._table = torch.tensor(table, dtype=torch.int32, device=sums.tiles.device)
        self._tiles = (
            tile_descriptor(source.memory, size), tile_descriptor(source.memory, _HALO), tile_descriptor(sums.tiles, SLICE),
            tile_descriptor(target.memory, size),
        )  # fmt: skip
        self._scalars = (scale, slope)

    def launch(self) -> None:
        sums, target = self._sums, self._target
        kernels_convolution.sum_windows[self._grid](
            *self._tiles, self._table, sums.bias, sums.alphas, target.real, target.extent, *self._scalars, **self._sizes, num_warps=4
        )


def _row(part: Part, use: Use, group: int, in_capacity: int, out_capacity: int) -> list[int]:
    """A segment's row of the kernel's table."""
    assert len(use.residuals) <= MAX_RESIDUALS and len(use.actives) <= MAX_ACTIVES
    numbers = [0] * SEGMENT_NUMBERS
    numbers[SegmentField.IN_ROW] = use.source * in_capacity
    numbers[SegmentField.TAPS] = part.taps
    numbers[SegmentField.WRAP] = part.wrap
    numbers[SegmentField.DILATION] = part.dilation
    numbers[SegmentField.PAD] = part.pad
    numbers[SegmentField.WEIGHT_TILE] = part.first_tile
    numbers[SegmentField.RESIDUALS] = len(use.residuals)
    for index, slot in enumerate(use.residuals):
        numbers[SegmentField.RESIDUAL_ROW + index] = slot * in_capacity
    numbers[SegmentField.OUT_ROW] = -1 if use.out is None else use.out * out_capacity
    numbers[SegmentField.ACTIVES] = len(use.actives)
    for index, slot in enumerate(use.actives):
        numbers[SegmentField.ACTIVE_ROW + index] = slot * out_capacity
    numbers[SegmentField.VALUES] = group
    return numbers
