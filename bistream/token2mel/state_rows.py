"""Stored rows of numbers: as the network computes them, or in half the memory as 8-bit integers with a scale for each row.

A row's numbers are of one size, and 127 steps up to the largest keep them: with the context of attention stored so, the mel of the shipped
voice in float32 has a signal-to-error ratio of 66 dB, and 16-bit networks have 48 to 67 dB anyway. So those of 16 bit store 8 bits. The DiT
has the rows of a weight so, too, by which stored rows are multiplied: its mel then keeps 52 to 57 dB (random weights, full size, 16 bit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST = 127  # magnitude of a stored integer
SCALE_BYTES = 4


def is_scaled(dtype: torch.dtype) -> bool:
    """Whether a network of this type stores 8-bit integers."""
    return dtype.itemsize == 2


def row_bytes(width: int, dtype: torch.dtype) -> int:
    return width + SCALE_BYTES if is_scaled(dtype) else width * dtype.itemsize


@dataclass(frozen=True)
class StateRows:
    """values: [..., width]. scales: float32 [...], what a row's integers are multiplied by; None: values are the rows."""

    values: Tensor
    scales: Tensor | None = None

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> StateRows:
        """For a network of ``dtype``."""
        if not is_scaled(dtype):
            return cls(torch.empty(*shape, dtype=dtype, device=device))
        return cls(torch.empty(*shape, dtype=torch.int8, device=device), torch.empty(*shape[:-1], device=device))

    @classmethod
    def of(cls, rows: Tensor) -> StateRows:
        """[..., width], of a network of their dtype."""
        return cls(*scaled(rows.float())) if is_scaled(rows.dtype) else cls(rows)

    @classmethod
    def stack(cls, parts: Sequence[StateRows]) -> StateRows:
        """[parts, ...]"""
        scales = [part.scales for part in parts if part.scales is not None]
        return cls(torch.stack([part.values for part in parts]), torch.stack(scales) if scales else None)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> StateRows:
        """A view by dimensions before the last."""
        return StateRows(self.values[index], None if self.scales is None else self.scales[index])

    def flatten(self, first: int, last: int) -> StateRows:
        """A view in which the dimensions ``first`` to ``last``, before the rows' own, are one."""
        return StateRows(self.values.flatten(first, last), None if self.scales is None else self.scales.flatten(first, last))

    def zero_(self) -> None:
        for tensor in (self.values, self.scales):
            if tensor is not None:
                tensor.zero_()

    def write(self, dim: int, index: Tensor, rows: Tensor) -> None:
        """Store ``rows`` at these places of dimension ``dim``."""
        if self.scales is None:
            self.values.index_copy_(dim, index, rows.to(self.values.dtype))
            return
        values, scales = scaled(rows.float())
        self.values.index_copy_(dim, index, values)
        self.scales.index_copy_(dim, index, scales)

    def read(self, dim: int, index: Tensor) -> Tensor:
        """The rows at these places of dimension ``dim``, float32 where they are scaled."""
        scales = None if self.scales is None else self.scales.index_select(dim, index)
        return StateRows(self.values.index_select(dim, index), scales).numbers()

    def numbers(self) -> Tensor:
        """All rows, float32 where they are scaled."""
        return self.values if self.scales is None else self.values.float() * self.scales[..., None]


def scaled(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [..., width] -> integers, int8, and scales, float32 [...]; a row that is not finite has a scale that is not."""
    largest = rows.abs().amax(dim=-1)
    inverse = torch.where(largest > 0.0, LARGEST / largest, 0.0)
    return (rows * inverse[..., None]).round().nan_to_num(0.0).to(torch.int8), largest / LARGEST
