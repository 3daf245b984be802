"""Networks at the rate of tokens, of ConvNeXt blocks (Vocos): the encoder, and the prenet of the decoder.

Channels first, [B, C, T], in and out. eps and kernels are upstream's, in its code. Keys of the modules are those of the file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.bicodec.config import FrameNetSizes
from bistream.bicodec.layers import ConditionedNorm, Conv, Resampling
from bistream.bicodec.signal import Signal

NORM_EPS = 1e-6
RESAMPLED_LAYERS = 2  # ConvNeXt blocks behind each resampling block
KERNEL = 7


def _norm(width: int, condition_size: int | None) -> nn.Module:
    return nn.LayerNorm(width, NORM_EPS) if condition_size is None else ConditionedNorm(width, condition_size, NORM_EPS)


def _normed(norm: nn.Module, x: Tensor, condition: Tensor | None) -> Tensor:
    output: Tensor = norm(x) if condition is None else norm(x, condition)
    return output


class ConvNeXt(nn.Module):
    """Depthwise convolution, norm, two layers per frame with a GELU between, residual."""

    def __init__(self, width: int, intermediate: int, condition_size: int | None = None) -> None:
        super().__init__()
        self.dwconv = Conv(width, width, KERNEL, groups=width)
        self.norm = _norm(width, condition_size)
        self.pwconv1, self.pwconv2 = nn.Linear(width, intermediate), nn.Linear(intermediate, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, signal: Signal, condition: Tensor | None = None) -> Tensor:
        """x [B, C, T], condition [B, D] or None -> [B, C, T]."""
        since = signal.delay
        y = _normed(self.norm, self.dwconv.over(x, signal).transpose(1, 2), condition)
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        output: Tensor = signal.wait(x, since) + y.transpose(1, 2)
        return output


class Backbone(nn.Module):
    """A convolution, a norm, ConvNeXt blocks, a norm. Only the last norm is never conditioned."""

    def __init__(self, input_size: int, width: int, intermediate: int, layers: int, condition_size: int | None = None) -> None:
        super().__init__()
        self.embed = Conv(input_size, width, KERNEL)
        self.norm = _norm(width, condition_size)
        self.convnext = nn.ModuleList(ConvNeXt(width, intermediate, condition_size) for _ in range(layers))
        self.final_layer_norm = nn.LayerNorm(width, NORM_EPS)

    def forward(self, x: Tensor, signal: Signal, condition: Tensor | None = None) -> Tensor:
        """x [B, input_size, T], condition [B, D] or None -> [B, C, T]."""
        x = _normed(self.norm, self.embed.over(x, signal).transpose(1, 2), condition).transpose(1, 2)
        for block in self.convnext:
            x = block(x, signal, condition)
        output: Tensor = self.final_layer_norm(x.transpose(1, 2)).transpose(1, 2)
        return output


def _resampled(sizes: FrameNetSizes, upwards: bool) -> nn.ModuleList:
    """A resampling block and a backbone for each ratio."""
    return nn.ModuleList(
        nn.ModuleList(
            [
                Resampling(sizes.width, up=ratio if upwards else 1, down=1 if upwards else ratio),
                Backbone(sizes.width, sizes.width, sizes.intermediate, RESAMPLED_LAYERS),
            ]
        )
        for ratio in sizes.ratios
    )


def _run(stages: nn.ModuleList, x: Tensor, signal: Signal) -> Tensor:
    for stage in stages:
        assert isinstance(stage, nn.ModuleList)
        for module in stage:
            x = module(x, signal)
    return x


class Encoder(nn.Module):
    """wav2vec2's features to the vectors that become semantic tokens."""

    def __init__(self, sizes: FrameNetSizes) -> None:
        super().__init__()
        self.encoder = Backbone(sizes.input_size, sizes.width, sizes.intermediate, sizes.layers)
        self.downsample = _resampled(sizes, upwards=False)
        self.project = nn.Linear(sizes.width, sizes.output_size)

    def forward(self, features: Tensor, signal: Signal) -> Tensor:
        """[B, input_size, T] -> [B, output_size, T / product of the ratios]."""
        x = _run(self.downsample, self.encoder(features, signal), signal)
        output: Tensor = self.project(x.transpose(1, 2)).transpose(1, 2)
        return output


class Prenet(nn.Module):
    """Vectors of semantic tokens to those that the wave generator reads, in the voice of a condition; without one it is the postnet."""

    def __init__(self, sizes: FrameNetSizes, condition_size: int | None) -> None:
        super().__init__()
        self.linear_pre = nn.Linear(sizes.input_size, sizes.width)
        self.downsample = _resampled(sizes, upwards=True)  # upstream's name
        self.vocos_backbone = Backbone(sizes.width, sizes.width, sizes.intermediate, sizes.layers, condition_size)
        self.linear = nn.Linear(sizes.width, sizes.output_size)
        self._tanh_at_end = sizes.tanh_at_end

    def forward(self, x: Tensor, signal: Signal, condition: Tensor | None = None) -> Tensor:
        """x [B, input_size, T], condition [B, D] or None -> [B, output_size, T * product of the ratios]."""
        x = _run(self.downsample, self.linear_pre(x.transpose(1, 2)).transpose(1, 2), signal)
        x = self.vocos_backbone(x, signal, condition).transpose(1, 2)
        output: Tensor = self.linear(x).transpose(1, 2)
        return output.tanh() if self._tanh_at_end else output
