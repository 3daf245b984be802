"""Convolutions of the recorded vocoders as products of matrices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.mel2wav.graphs import decoder
from bistream.mel2wav.graphs.decoder import Conv, Layout


def conv(channels: int, kernel: int, dilation: int, padding: int) -> Conv:
    weight = torch.randn(channels, channels, 1, kernel).clone(memory_format=torch.channels_last)
    return Conv(weight, torch.zeros(channels), stride=1, padding=padding, dilation=dilation)


def reference(x: Tensor, conv: Conv) -> Tensor:
    return F.conv1d(x.transpose(1, 2), conv.weight.squeeze(2), padding=conv.padding, dilation=conv.dilation).transpose(1, 2)


@pytest.mark.parametrize("padding", [0, 15])
@pytest.mark.parametrize(("kernel", "dilation"), [(7, 5), (3, 3), (11, 5)])
@pytest.mark.parametrize("channels", [256, 4])
def test_a_dilated_convolution_is_the_librarys(channels: int, kernel: int, dilation: int, padding: int) -> None:
    torch.manual_seed(0)
    layer, x = conv(channels, kernel, dilation, padding), torch.randn(2, 71, channels)
    assert decoder._is_product(layer) == (channels == 256)
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):  # also where positions do not lie in rows
        found = Layout(channels_last=True).convolve(given, layer)
        torch.testing.assert_close(found, reference(x, layer), rtol=1e-4, atol=1e-3)


def test_only_wide_dilated_convolutions_are_products() -> None:
    assert not decoder._is_product(conv(256, 7, 1, 0))
    up = Conv(torch.randn(512, 256, 1, 16), torch.zeros(256), stride=8, padding=4, transposed=True)
    assert not decoder._is_product(up)
