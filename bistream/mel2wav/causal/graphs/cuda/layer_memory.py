"""``causal.layers.LayerMemory`` with one kernel for each layer instead of five. Imported only where Triton is."""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.mel2wav.causal.graphs.cuda import kernels_memory
from bistream.mel2wav.causal.layers import LayerMemory

_BLOCK = 2048


class KernelLayerMemory(LayerMemory):
    """Of inputs whose channels are last. stored: [B, numbers], contiguous."""

    def __init__(self, stored: Tensor, frames: Tensor) -> None:
        super().__init__(stored, frames.contiguous(), positions_dim=1)
        self._old, self._new = stored, torch.empty_like(stored)

    def extend(self, x: Tensor, history: int, rate: int = 1) -> Tensor:
        """[B, N, C] -> [B, history + N, C]."""
        x = x.contiguous()
        rows, count, channels = x.shape
        out = x.new_empty(rows, history + count, channels)
        size = history * channels
        kernels_memory.extend_rows[(rows, -(-out[0].numel() // _BLOCK))](
            self._old[:, self._place :], x, out, self._new[:, self._place :], self._old.stride(0), self._frames, rate, channels,
            size, count * channels, BLOCK=_BLOCK,
        )  # fmt: skip
        self._place += size
        return out

    def kept(self) -> Tensor:
        assert self._place == self._old.shape[1], "every layer has been asked"
        return self._new
