"""The fixed buffers of one batch size: its integer arrays on host and device, its conditions, its results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bistream.token2mel.batching import Span
from bistream.token2mel.dit.graphs.batch import BatchSize, IntArray32, SlotLayout


class BatchMemory:
    """Of one capacity. conditions: [tiles, frames, channels]; mel: float32 [tiles, frames, bins]; is_finite: bool [tiles].

    channels, bins: of the conditions and of the mel.
    """

    def __init__(self, size: BatchSize, layout: SlotLayout, channels: int, bins: int, dtype: torch.dtype, device: torch.device) -> None:
        shapes, tiles = layout.array_shapes(size), size.tiles
        count = sum(math.prod(shape) for shape in shapes.values())
        self._layout = layout
        self._numbers = torch.zeros(count, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device_numbers = torch.zeros(count, dtype=torch.int32, device=device)
        self._host: dict[str, IntArray32] = {}
        self.arrays: dict[str, Tensor] = {}
        numbers, begin = self._numbers.numpy(), 0
        for name, shape in shapes.items():
            end = begin + math.prod(shape)
            self._host[name] = numbers[begin:end].reshape(shape)
            self.arrays[name] = self._device_numbers[begin:end].view(shape)
            begin = end
        self.conditions = torch.zeros(tiles, layout.chunk, channels, dtype=dtype, device=device)
        self.mel = torch.zeros(tiles, layout.chunk, bins, device=device)
        self.is_finite = torch.zeros(tiles, dtype=torch.bool, device=device)
        self.clear()

    def clear(self) -> None:
        """Make every tile dead."""
        self._layout.fill(self._host, (), ())
        self._device_numbers.copy_(self._numbers)

    def bring(self, spans: Sequence[Span], first_conditions: Sequence[int], conditions: Tensor) -> None:
        """Load a batch. conditions: [rows, channels]; see ``SlotLayout.fill``."""
        self._layout.fill(self._host, spans, first_conditions)
        self._device_numbers.copy_(self._numbers, non_blocking=True)
        count = sum(self._layout.tiles(span) for span in spans)
        index = self.arrays["condition"][:count].flatten()
        self.conditions[:count].flatten(0, 1).copy_(conditions.index_select(0, index))

    def state(self) -> tuple[Tensor, ...]:
        """What a batch between two steps of the solver needs afterwards, beside its pages."""
        return self._device_numbers, self.conditions, self.mel

    def results(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Tensor, list[bool]]:
        """Mel of these packed rows, [bins, rows], and whether each tile is finite. Waits for the device."""
        index = torch.from_numpy(rows).to(self.mel.device, non_blocking=True)
        mel = self.mel.flatten(0, 1).index_select(0, index).T.contiguous()
        return mel, self.is_finite.tolist()
