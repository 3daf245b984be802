"""Weights of sums of convolutions as ``kernels_convolution`` multiplies them: slices of 64 channels of a tap. No Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.mel2wav.sizes import padded_width

SLICE = 64  # channels
FOLDED_CHANNELS = 64  # sums of so many channels are bound by the activations that they read: see ``_folded``


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
    group. exact: the last convolution of a group is summed with correct rounding. fold: positions that are one here, see ``_folded``.
    """

    weights: Tensor
    firsts: list[int]
    groups: list[list[Part]]
    bias: Tensor
    alphas: Tensor
    channels: int
    exact: bool = False
    fold: int = 1

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]


def pack_sums(
    groups: Sequence[Sequence[tuple[Tensor, Part]]], bias: Tensor, alphas: Tensor, dtype: torch.dtype, exact: bool = False
) -> ConvolutionSums:
    """groups: weights [outputs, taps, channels]; outputs and channels are padded with zeros."""
    outputs = padded_width(bias.shape[1])
    groups = [[(_widened(weight), part) for weight, part in group] for group in groups]
    bias, alphas = (F.pad(values, (0, outputs - values.shape[1])) for values in (bias.float(), alphas))
    fold = 2 if all(_folds(weight, part) for group in groups for weight, part in group) else 1
    if fold > 1:
        groups = [[_folded(weight, part) for weight, part in group] for group in groups]
    slices = []
    for group in groups:
        matrix = torch.cat([weight.flatten(1) for weight, _ in group], dim=1)
        slices.append(matrix.reshape(len(matrix), -1, SLICE).transpose(0, 1).to(dtype))
    return ConvolutionSums(
        weights=torch.cat(slices),
        firsts=[sum(map(len, slices[:index])) for index in range(len(slices))],
        groups=[[part for _, part in group] for group in groups],
        bias=bias.repeat(1, fold),
        alphas=alphas.repeat(1, fold),
        channels=groups[0][0][0].shape[2],
        exact=exact,
        fold=fold,
    )


def _widened(weight: Tensor) -> Tensor:
    outputs, _, channels = weight.shape
    return F.pad(weight, (0, padded_width(channels) - channels, 0, 0, 0, padded_width(outputs) - outputs))


def _folds(weight: Tensor, part: Part) -> bool:
    """Sums of so few channels that two positions make one of usual size, without dilation, and with an odd number of positions ahead."""
    outputs, _, channels = weight.shape
    return outputs == channels == FOLDED_CHANNELS and part.dilation == 1 and part.taps == 2 * part.pad + 1 and part.pad % 2 == 1


def _folded(weight: Tensor, part: Part) -> tuple[Tensor, Part]:
    """The same convolution from pairs of positions to pairs of positions, with twice the channels and half as many taps.

    A pair of results reads taps + 1 positions instead of 2 * taps, for 1 / taps more arithmetic. Pairs of results begin at even positions,
    those that are read at odd ones: a sum begins ``pad`` positions before its result.
    """
    both = torch.cat([F.pad(weight, (0, 0, 0, 1)), F.pad(weight, (0, 0, 1, 0))])  # the second result reads one position further on
    pairs = (part.taps + 1) // 2
    return both.reshape(len(both), pairs, -1), Part(pairs, 1, (part.pad + 1) // 2, part.use)
