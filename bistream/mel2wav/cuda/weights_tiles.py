"""Weights of convolutions as the tiles of 64 outputs by 64 channels that ``kernels_convolution`` multiplies. No Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SLICE = 64  # channels of a tile, outputs of a tile


@dataclass(frozen=True)
class Part:
    """One convolution of a sum. taps: products per 64 channels; tap t reads the window at (t modulo ``wrap``) * ``dilation``."""

    taps: int
    wrap: int
    dilation: int
    pad: int
    first_tile: int


@dataclass(frozen=True)
class WindowSum:
    """groups: the convolutions that are summed, per result. tiles: 16-bit [tiles * 64, 64], the first one the identity matrix.

    bias: float32 [groups, outputs]. alphas: float32 [any, outputs], of the snakes after it, group by group.
    """

    tiles: Tensor
    bias: Tensor
    alphas: Tensor
    groups: list[list[Part]]
    panels: int
    blocks: int


class TileList:
    """Collects weights as tiles of 64 outputs by 64 channels: by output block, channel block, tap."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._tiles = [torch.eye(SLICE, dtype=dtype, device=device)]
        self._count = 1
        self._dtype = dtype

    def add(self, weight: Tensor, dilation: int, pad: int, wrap: int | None = None) -> Part:
        """weight: [outputs, taps, channels], outputs a multiple of 64; channels are padded to one with zeros."""
        outputs, taps, channels = weight.shape
        panels = -(-channels // SLICE)
        padded = F.pad(weight, (0, panels * SLICE - channels))
        tiles = padded.view(outputs // SLICE, SLICE, taps, panels, SLICE).permute(0, 3, 2, 1, 4).reshape(-1, SLICE)
        part = Part(taps, wrap or taps, dilation, pad, self._count)
        self._tiles.append(tiles.to(self._dtype))
        self._count += len(tiles) // SLICE
        return part

    def close(self) -> Tensor:
        """All tiles, [tiles * 64, 64]."""
        return torch.cat(self._tiles)
