"""Weights of sums of convolutions as ``kernels_convolution`` multiplies them: slices of 64 channels of a tap. No Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SLICE = 64  # channels; activations have a multiple of it


@dataclass(frozen=True)
class Part:
    """One convolution of a group: tap t reads position + t * dilation - pad. use: number of the activations that it reads."""

    taps: int
    dilation: int
    pad: int
    use: int


@dataclass(frozen=True)
class ConvolutionSums:
    """groups: the convolutions that are summed, per result. weights: 16-bit [slices, outputs, SLICE], by group, convolution, tap, channel.

    firsts: the first slice of each group. bias: float32 [groups, outputs]. alphas: float32 [any, outputs], of the snakes after it, group by
    group. exact: the last convolution of a group is summed with correct rounding.
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
    channels = -(-groups[0][0][0].shape[2] // SLICE) * SLICE
    slices = []
    for group in groups:
        padded = [F.pad(weight, (0, channels - weight.shape[2])).flatten(1) for weight, _ in group]
        slices.append(torch.cat(padded, dim=1).unflatten(1, (-1, SLICE)).transpose(0, 1).to(dtype))
    return ConvolutionSums(
        weights=torch.cat(slices),
        firsts=[sum(map(len, slices[:index])) for index in range(len(slices))],
        groups=[[part for _, part in group] for group in groups],
        bias=bias.float().contiguous(),
        alphas=alphas.contiguous(),
        channels=channels,
        exact=exact,
    )
