"""The DiT's operations between matrix products, which are kernels of ours (``cuda``); tests have plain ones (``tests/plain_dit.py``).

Tensors are [rows, channels] of both guidance halves; which rows are a tile's, ``Tiles`` says. What rows of no tile hold does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import PositionConv
from bistream.token2mel.sizes import DIT_CONV_GROUPS


@dataclass(frozen=True)
class PackedConv:
    """A position convolution. weight: [groups, kernel, channels of a group, channels of a group], in before out; bias: [channels]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, conv: PositionConv) -> PackedConv:
        _, channels, kernel = conv.weight.shape
        grouped = conv.weight.detach().view(DIT_CONV_GROUPS, -1, channels, kernel)
        return cls(grouped.permute(0, 3, 2, 1).contiguous(), conv.bias.detach())


def linear_gelu_in_one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The first half of a feed-forward. The matrix library ends its product with GELU, which on CUDA is the tanh form."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


@dataclass(frozen=True)
class DitOperations:
    """The functions of ``cuda.launches``, or what does the same."""

    convolve: Callable[..., Tensor]
    advance: Callable[..., tuple[Tensor, Tensor]]
    linear_gelu: Callable[..., Tensor]
    project_context: Callable[..., Tensor]
    attend: Callable[..., Tensor]
