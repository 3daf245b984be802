"""Weights as the vocoder's own kernels read them, and what these ask of a network. No Triton, no GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.checkpoints.config import VocoderConfig
from bistream.mel2wav.cuda.weights_sums import SLICE, ConvolutionSums, Part, pack_sums
from bistream.mel2wav.sizes import graphs_need, padded_width, spectrum_width, stage_gap

RELEASED = VocoderConfig()


def summed(sums: ConvolutionSums, group: int, x: Tensor) -> Tensor:
    """What the kernel computes of one group. x: float64 [positions, channels], zeros around it. Returns [positions, outputs]."""
    fold, outputs = sums.fold, sums.bias.shape[1]
    around = 40
    padded = F.pad(x, (0, sums.channels // fold - x.shape[1], around, around + fold))
    first = 1 if fold > 1 else 0
    rows = padded[first : first + len(padded) // fold * fold - fold].reshape(-1, sums.channels)
    total = torch.zeros(len(x) // fold, outputs, dtype=torch.float64)
    slice_number = sums.firsts[group]
    for part in sums.groups[group]:
        for tap in range(part.taps):
            begin = around // fold + tap * part.dilation - part.pad
            for panel in range(sums.channels // SLICE):
                given = rows[begin : begin + len(total), panel * SLICE : (panel + 1) * SLICE]
                total += given @ sums.weights[slice_number].double().T
                slice_number += 1
    return total.reshape(len(x), outputs // fold)


@pytest.mark.parametrize("channels, taps, dilation, fold", [
    (64, 3, 1, 2), (64, 7, 1, 2), (64, 11, 1, 2), (64, 11, 3, 1), (64, 5, 1, 1), (64, 1, 1, 1), (48, 7, 1, 2), (128, 7, 1, 1),
    (24, 3, 2, 1), (80, 3, 1, 1),
])  # fmt: skip
def test_packed_weights_are_those_of_the_convolution(channels: int, taps: int, dilation: int, fold: int) -> None:
    generator = torch.Generator().manual_seed(taps)
    weight = torch.randn(channels, taps, channels, generator=generator).half().float()
    pad = (taps - 1) * dilation // 2
    bias, alphas = torch.randn(1, channels, generator=generator), torch.rand(2, channels, generator=generator)
    sums = pack_sums([[(weight, Part(taps, dilation, pad, 0))]], bias, alphas, torch.float16)
    x = torch.randn(30, channels, generator=generator, dtype=torch.float64)
    exact = F.conv1d(x.T[None], weight.double().transpose(1, 2), dilation=dilation, padding=pad)[0].T
    assert sums.fold == fold
    found = summed(sums, 0, x)
    torch.testing.assert_close(found[:, :channels], exact)
    assert not found[:, channels:].any(), "channels that the network has not"
    width = padded_width(channels)
    for packed, given in ((sums.bias, bias), (sums.alphas, alphas)):
        for copy in range(fold):
            assert packed[:, copy * width : copy * width + channels].equal(given)
            assert not packed[:, copy * width + channels : (copy + 1) * width].any()


def test_groups_and_convolutions_follow_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = ((11, 1), (3, 1), (7, 1))
    weights = [torch.randn(64, taps, 64, generator=generator).half().float() for taps, _ in kinds]
    members = [(weight, Part(taps, 1, taps // 2, 0)) for weight, (taps, _) in zip(weights, kinds, strict=True)]
    x = torch.randn(20, 64, generator=generator, dtype=torch.float64)
    exact = [F.conv1d(x.T[None], weight.double().transpose(1, 2), padding=weight.shape[1] // 2)[0].T for weight in weights]
    zeros = torch.zeros(3, 64)
    apart = pack_sums([[member] for member in members], zeros, zeros, torch.float16)
    for group in range(3):
        torch.testing.assert_close(summed(apart, group, x), exact[group])
    together = pack_sums([members], zeros[:1], zeros, torch.float16)
    torch.testing.assert_close(summed(together, 0, x), sum(exact[1:], exact[0]))


def test_the_released_sizes() -> None:
    assert graphs_need(RELEASED) == ()
    assert (stage_gap(RELEASED), spectrum_width(RELEASED)) == (32, 32)
    assert [padded_width(channels) for channels in (512, 80, 64, 12)] == [512, 128, 64, 64]


def test_gaps_cover_every_reach() -> None:
    for reach in (31, 32, 40):
        far = dataclasses.replace(RELEASED, resblock_dilation_sizes=((1, 3, reach), (1,), (1,)))  # kernel size 3
        assert stage_gap(far) > reach


def test_what_the_kernels_do_not_serve() -> None:
    many = dataclasses.replace(RELEASED, resblock_kernel_sizes=(3,) * 4, resblock_dilation_sizes=((1,),) * 4)
    assert graphs_need(many) == ("at most 3 residual blocks in a stage",)
    assert len(graphs_need(dataclasses.replace(RELEASED, istft_n_fft=8, in_channels=100))) == 2
