"""The wave generator: vectors at the rate of tokens to samples. Keys of the modules are those of the file."""

from __future__ import annotations

from torch import Tensor, nn

from bistream.bicodec.config import GeneratorSizes
from bistream.bicodec.layers import Conv, ResidualUnit, Upsampling
from bistream.bicodec.signal import Signal
from bistream.mel2wav.hift import Snake

DILATIONS = (1, 3, 9)
KERNEL = 7


class Stage(nn.Module):
    """Snake, a transposed convolution to half the channels, three residual units."""

    def __init__(self, channels: int, rate: int, kernel: int) -> None:
        super().__init__()
        width = channels // 2
        up = Upsampling(channels, width, kernel, rate, (kernel - rate) // 2)
        self.block = nn.ModuleList([Snake(channels), up, *(ResidualUnit(width, dilation) for dilation in DILATIONS)])

    def forward(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, channels, N] -> [B, channels / 2, rate N]."""
        snake, up, *units = self.block
        assert isinstance(up, Upsampling)
        x = up.over(snake(x), signal)
        for unit in units:
            x = unit(x, signal)
        return x


class WaveGenerator(nn.Module):
    """A convolution, the stages, snake, a convolution to one channel, tanh."""

    def __init__(self, sizes: GeneratorSizes) -> None:
        super().__init__()
        widths = [sizes.channels // 2**stage for stage in range(len(sizes.rates) + 1)]
        stages = (Stage(*of_stage) for of_stage in zip(widths, sizes.rates, sizes.kernels, strict=False))
        self.model = nn.ModuleList([Conv(sizes.input_size, widths[0], KERNEL), *stages, Snake(widths[-1]), Conv(widths[-1], 1, KERNEL)])

    def forward(self, x: Tensor, signal: Signal) -> Tensor:
        """[B, input_size, T] -> samples in (-1, 1), [B, T * product of the rates]."""
        first, *stages, snake, last = self.model
        assert isinstance(first, Conv) and isinstance(last, Conv)
        x = first.over(x, signal)
        for stage in stages:
            x = stage(x, signal)
        return last.over(snake(x), signal).tanh()[:, 0]
