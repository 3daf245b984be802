"""The DiT's operations between matrix products: plain, for the CPU and as reference, or as kernels of ours, for a GPU.

Tensors are [tiles, rows, channels] of both guidance halves, the second half's tiles and pages after the first's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import PositionConv, modulated
from bistream.token2mel.dit.graphs.attention import attend_projected, project_context
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows


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


def convolve(x: Tensor, tail: StateRows, previous: Tensor, last: Tensor, page: Tensor, conv: PackedConv) -> Tensor:
    """Grouped causal convolution, then Mish; stores the last inputs of each tile.

    tail: [pages, history, groups, channels of a group], stored inputs of this convolution. previous: the tile of the chunk before, -1 where
    ``last`` is its page. page: where the tile's own last frames go.
    """
    (tiles, rows, channels), (groups, kernel, _, _) = x.shape, conv.weight.shape
    ends = x[:, rows - (kernel - 1) :]
    head = torch.where((previous >= 0)[:, None, None], ends[previous.clamp(min=0)], tail.read(0, last).flatten(2).to(x.dtype))
    tail.write(0, page, ends.reshape(tiles, kernel - 1, groups, -1))
    taps = torch.cat([head, x], dim=1).unfold(1, kernel, 1).view(tiles, rows, groups, channels // groups, kernel)
    taps = taps.permute(2, 0, 1, 4, 3).reshape(groups, tiles * rows, -1)
    out = torch.baddbmm(conv.bias.view(groups, 1, -1), taps, conv.weight.flatten(1, 2))  # [groups, tiles * rows, channels of a group]
    return F.mish(out.transpose(0, 1).reshape(x.shape))


def advance(
    x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor, pages: StateRows | None = None, page: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta), the norm also stored to ``pages`` [pages, rows, width]."""
    x = x + gate * delta.float()
    normed = modulated(x, scale, shift).to(delta.dtype)
    if pages is not None and page is not None:
        pages.write(0, page, normed)
    return x, normed


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The first half of a feed-forward, GELU in its tanh form."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def linear_gelu_in_one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same where the matrix library ends its product with GELU, which on CUDA is the tanh form."""
    return torch._addmm_activation(bias, x.flatten(0, 1), weight.t(), use_gelu=True).view(*x.shape[:2], -1)


@dataclass(frozen=True)
class DitOperations:
    """The functions above and those of ``attention``, or what does the same."""

    convolve: Callable[..., Tensor]
    advance: Callable[..., tuple[Tensor, Tensor]]
    linear_gelu: Callable[..., Tensor]
    project_context: Callable[..., Tensor]
    attend: Callable[..., Tensor]


def plain_operations() -> DitOperations:
    return DitOperations(convolve, advance, linear_gelu, project_context, attend_projected)
