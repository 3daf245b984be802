"""Layers of the codec that look around. Each gives as many positions as it gets, or a multiple (``signal``)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.bicodec.signal import Signal
from bistream.mel2wav.hift import Snake

LEAKY_SLOPE = 0.2


class Conv(nn.Conv1d):
    """A convolution of an odd kernel that looks as far to the right as to the left."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, dilation=dilation, groups=groups)
        self.reach = dilation * (kernel - 1) // 2

    def over(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, in, N] -> [B, out, N]."""
        output: Tensor = self(signal.around(x, self.reach, self.reach) if self.reach else x)
        return output


class Upsampling(nn.ConvTranspose1d):
    """``rate`` positions for one. cut: positions before the first that it makes and drops."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, rate: int, cut: int, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, rate, groups=groups)
        self.rate, self.cut = rate, cut
        self.history = -(-kernel // rate) - 1  # inputs before one that share outputs with it

    def over(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, in, N] -> [B, out, rate N]."""
        made = self(signal.around(x, self.history, 0))
        first = self.history * self.rate + signal.raise_rate(self.rate, self.cut)
        output: Tensor = made[:, :, first : first + self.rate * x.shape[2]]
        return output


class Resampling(nn.Module):
    """The codec's block between two rates of frames. With both at 1 it has no weights and multiplies by 3."""

    def __init__(self, channels: int, up: int = 1, down: int = 1) -> None:
        """up, down: frames out for one in, and in for one out."""
        super().__init__()
        self.up, self.down = up, down
        if up > 1:  # the keys have an activation in place 0
            self.de_conv_upsampler = nn.ModuleList([nn.Identity(), Upsampling(channels, channels, 2 * up, up, (up + 1) // 2, channels)])
        if down > 1:
            layer = nn.Conv1d(channels, channels, 2 * down, down, padding=(down + 1) // 2, groups=channels)
            self.conv_downsampler = nn.ModuleList([nn.Identity(), layer])

    def forward(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, C, N] -> [B, C, up N / down]. Only whole signals of one length can be sampled down."""
        repeated = merged = x
        if self.up > 1:
            layer, since = self.de_conv_upsampler[1], signal.delay
            assert isinstance(layer, Upsampling)
            made = layer.over(F.leaky_relu(x, LEAKY_SLOPE), signal)
            repeated = signal.wait(x.repeat_interleave(self.up, dim=2), self.up * since)
            merged = made + repeated
        if self.down == 1:
            return 2 * merged + repeated
        made = self.conv_downsampler[1](F.leaky_relu(merged, LEAKY_SLOPE))
        output: Tensor = made + F.avg_pool1d(merged + repeated, self.down)
        return output


class ResidualUnit(nn.Module):
    """x + convolution of 1 (snake (dilated convolution of 7 (snake x)))."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [Snake(channels), Conv(channels, channels, 7, dilation), Snake(channels), nn.Conv1d(channels, channels, 1)]
        )

    def forward(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, C, N] -> the same."""
        first, wide, second, narrow = self.block
        assert isinstance(wide, Conv)
        since = signal.delay
        y = narrow(second(wide.over(first(x), signal)))
        output: Tensor = signal.wait(x, since) + y
        return output


class ConditionedNorm(nn.Module):
    """Layer norm whose scale and shift are linear in a condition."""

    def __init__(self, size: int, condition_size: int, eps: float) -> None:
        super().__init__()
        self.scale, self.shift = nn.Linear(condition_size, size), nn.Linear(condition_size, size)
        self.size, self.eps = size, eps

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x [B, N, C], condition [B, D] -> [B, N, C]."""
        normed = F.layer_norm(x, (self.size,), eps=self.eps)
        return torch.addcmul(self.shift(condition)[:, None], normed, self.scale(condition)[:, None])
