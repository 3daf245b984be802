"""Weights of sums of convolutions as ``kernels_convolution`` multiplies them: a matrix [outputs, taps * channels] per group. No Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHANNEL_ROUND = 64  # activations have a multiple of this many channels


@dataclass(frozen=True)
class Part:
    """One convolution of a group: tap t reads position + t * dilation - pad. use: number of the activations that it reads."""

    taps: int
    dilation: int
    pad: int
    use: int


@dataclass(frozen=True)
class ConvolutionSums:
    """groups: the convolutions that are summed, per result. weights: 16-bit, matrix after matrix, from ``firsts`` on.

    bias: float32 [groups, outputs]. alphas: float32 [any, outputs], of the snakes after it, group by group. exact: the last convolution
    of a group is summed with correct rounding.
    """

    weights: Tensor
    firsts: list[int]
    groups: list[list[Part]]
    bias: Tensor
    alphas: Tensor
    channels: int
    exact: bool = False

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]


def pack_sums(
    groups: Sequence[Sequence[tuple[Tensor, Part]]], bias: Tensor, alphas: Tensor, dtype: torch.dtype, exact: bool = False
) -> ConvolutionSums:
    """groups: weights [outputs, taps, channels], channels are padded with zeros."""
    channels = -(-groups[0][0][0].shape[2] // CHANNEL_ROUND) * CHANNEL_ROUND
    matrices = [
        torch.cat([F.pad(weight, (0, channels - weight.shape[2])).flatten(1) for weight, _ in group], dim=1).to(dtype) for group in groups
    ]
    sizes = [matrix.numel() for matrix in matrices]
    return ConvolutionSums(
        weights=torch.cat([matrix.flatten() for matrix in matrices]),
        firsts=[sum(sizes[:index]) for index in range(len(sizes))],
        groups=[[part for _, part in group] for group in groups],
        bias=bias.float().contiguous(),
        alphas=alphas.contiguous(),
        channels=channels,
        exact=exact,
    )
