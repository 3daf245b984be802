"""Launches of ``kernels_convolution.sum_convolutions``: locations of its inputs and results, and tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from bistream.mel2wav.cuda import kernels_convolution
from bistream.mel2wav.cuda.batch import GROUP_NUMBERS, MOST_ACTIVES, MOST_PARTS, MOST_RESIDUALS, GroupField
from bistream.mel2wav.cuda.tuning import Tile, convolution_tile
from bistream.mel2wav.cuda.weights_sums import SLICE, ConvolutionSums, Part


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
    """Slots that a convolution reads and that a group's first one writes. residuals: added; out: the sum; actives: its activations."""

    source: int
    residuals: tuple[int, ...] = ()
    out: int | None = None
    actives: tuple[int, ...] = ()


class SumLaunch:
    """One recorded launch. ``uses``: per group, one for each convolution. kind, scale, slope: see the kernel."""

    def __init__(
        self, sums: ConvolutionSums, source: Area, target: Area, uses: Sequence[Sequence[Use]], kind: str = "snake", scale: float = 1.0,
        slope: float = 0.0, dependent_launch: bool = True, bulk: bool | None = None, prefetch: bool = True, tile: Tile | None = None,
    ) -> None:  # fmt: skip
        """bulk: copy whole tiles; None: where the GPU can, from compute capability 9.0 on. prefetch: with ``dependent_launch`` only.

        tile: None: the measured default.
        """
        gpu: Any = torch.cuda.get_device_properties(sums.weights.device)
        bulk = gpu.major >= 9 if bulk is None else bulk
        assert source.memory.numel() < 2**31 > target.memory.numel(), "the kernel's places are 32-bit numbers"
        self._sums = sums
        self._source = source
        self._target = target
        in_capacity, out_capacity = source.capacity // sums.fold, target.capacity // sums.fold
        self.tile = tile or convolution_tile(
            out_capacity, sums.channels, sums.outputs, len(uses), sums.exact, gpu.multi_processor_count, gpu.shared_memory_per_block_optin
        )
        assert out_capacity % self.tile.positions == 0 == sums.outputs % self.tile.block
        self._grid = (out_capacity // self.tile.positions * (sums.outputs // self.tile.block), len(uses))
        self._options = {
            "CHANNELS": sums.channels, "OUTPUTS": sums.outputs, "FOLD": sums.fold, "KIND": kind, "TILE": self.tile.positions,
            "BLOCK": self.tile.block, "STEP": self.tile.step, "SLICE": SLICE, "STAGES": self.tile.stages, "BULK": bulk,
            "PREFETCH": prefetch and dependent_launch, "PDL": dependent_launch, "num_warps": self.tile.warps,
            "launch_pdl": dependent_launch,
        }  # fmt: skip
        x = _folded(source.memory, sums.fold)
        self._factors: tuple[Any, Any] = x, sums.weights
        if bulk:
            weights = sums.weights.flatten(0, 1)
            self._factors = _tiles(x, self.tile.positions, self.tile.step), _tiles(weights, self.tile.block, self.tile.step)
        rows = [
            _row(first, parts, members, in_capacity, out_capacity)
            for first, parts, members in zip(sums.firsts, sums.groups, uses, strict=True)
        ]
        self._table = torch.tensor(rows, dtype=torch.int32, device=sums.weights.device)
        self._scalars = (len(x) - 1, scale, slope)

    def launch(self) -> None:
        sums, target = self._sums, self._target
        kernels_convolution.sum_convolutions[self._grid](
            *self._factors, self._source.memory, sums.weights, target.memory, self._table, sums.bias, sums.alphas, target.real,
            target.extent, *self._scalars, **self._options,
        )  # fmt: skip


def _folded(memory: Tensor, fold: int) -> Tensor:
    """[positions, channels] as pairs of positions, the first of which is position 1, see ``weights_sums._folded``."""
    if fold == 1:
        return memory
    pairs = (len(memory) - 1) // fold
    return memory[1 : 1 + pairs * fold].view(pairs, -1)


def _tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def _row(first: int, parts: Sequence[Part], uses: Sequence[Use], in_capacity: int, out_capacity: int) -> list[int]:
    """A group's row of the kernel's table."""
    residuals = [slot for use in uses for slot in use.residuals]
    assert len(parts) <= MOST_PARTS and len(residuals) <= MOST_RESIDUALS and len(uses[0].actives) <= MOST_ACTIVES
    numbers = [0] * GROUP_NUMBERS
    numbers[GroupField.WEIGHTS] = first
    taps = 0
    for index in range(MOST_PARTS):
        numbers[GroupField.FIRST_TAP + index] = taps if index < len(parts) else sum(part.taps for part in parts)
        if index < len(parts):
            part = parts[index]
            numbers[GroupField.IN_ROW + index] = uses[part.use].source * in_capacity - part.pad - taps * part.dilation
            numbers[GroupField.DILATION + index] = part.dilation
            numbers[GroupField.EXACT_TAP] = taps
            taps += part.taps
    numbers[GroupField.TAPS] = taps
    numbers[GroupField.RESIDUALS] = len(residuals)
    for index, slot in enumerate(residuals):
        numbers[GroupField.RESIDUAL_ROW + index] = slot * in_capacity
    numbers[GroupField.OUT_ROW] = -1 if uses[0].out is None else uses[0].out * out_capacity
    numbers[GroupField.ACTIVES] = len(uses[0].actives)
    for index, slot in enumerate(uses[0].actives):
        numbers[GroupField.ACTIVE_ROW + index] = slot * out_capacity
    return numbers
