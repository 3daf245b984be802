"""Causal layers that go on where the previous call stopped. Everything is channel-first: [batch, channels, positions].

A layer gets its input extended to the left by what it saw last (``LayerMemory``), so pieces of any size joined equal one call over
everything up to rounding. Rows of a batch may have different lengths: padding stands to the right, which no layer sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bistream.mel2wav.hift import Snake


class LayerMemory:
    """The last inputs of every layer of one call. Calls of ``extend`` come in network order, so no layer needs an index.

    stored: [B, numbers], as ``kept`` gave it after the previous call; None: the start of the signal, zeros. frames: int64 [B], new frames.
    positions_dim: of the inputs, 2, or 1 where channels are last.
    """

    def __init__(self, stored: Tensor | None, frames: Tensor, positions_dim: int = 2) -> None:
        self._stored = stored
        self._frames = frames
        self._dim = positions_dim
        self._place = 0
        self._kept: list[Tensor] = []

    def extend(self, x: Tensor, history: int, rate: int = 1) -> Tensor:
        """[B, C, N] -> [B, C, history + N]. Keeps the last ``history`` of the first ``rate * frames`` positions of each row: those behind
        come again in the next call, or are padding."""
        dim, shape = self._dim, list(x.shape)
        shape[dim] = history
        if self._stored is None:
            old = x.new_zeros(shape)
        else:
            size = math.prod(shape[1:])
            old = self._stored[:, self._place : self._place + size].view(shape)
            self._place += size
        extended = torch.cat([old, x], dim=dim)
        index = rate * self._frames[:, None] + torch.arange(history, device=x.device)
        self._kept.append(extended.gather(dim, index.unsqueeze(3 - dim).expand(shape)).flatten(1))
        return extended

    def kept(self) -> Tensor:
        """[B, numbers]: what the next call goes on from."""
        return torch.cat(self._kept, dim=1)


class CausalConv(nn.Conv1d):
    """A convolution that looks left."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, dilation=dilation)
        self.history = (kernel - 1) * dilation

    def step(self, x: Tensor, memory: LayerMemory, rate: int = 1) -> Tensor:
        """[B, in, N] -> [B, out, N], ``rate`` positions per mel frame."""
        out: Tensor = self(memory.extend(x, self.history, rate))
        return out


class CausalResBlock(nn.Module):
    """Snake, dilated convolution, Snake, convolution, residual; once per dilation."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(CausalConv(channels, channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(CausalConv(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def step(self, x: Tensor, memory: LayerMemory, rate: int) -> Tensor:
        """[B, channels, N] -> the same."""
        for conv1, conv2, snake1, snake2 in zip(self.convs1, self.convs2, self.activations1, self.activations2, strict=True):
            assert isinstance(conv1, CausalConv) and isinstance(conv2, CausalConv)
            x = x + conv2.step(snake2(conv1.step(snake1(x), memory, rate)), memory, rate)
        return x


class Upsampling(CausalConv):
    """Every position repeated ``factor`` times, then a convolution that looks left."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, factor: int) -> None:
        super().__init__(in_channels, out_channels, kernel)
        self.factor = factor

    def step(self, x: Tensor, memory: LayerMemory, rate: int = 1) -> Tensor:
        """[B, in, N] -> [B, out, factor * N]; rate: after the repetition."""
        return super().step(x.repeat_interleave(self.factor, dim=2), memory, rate)
