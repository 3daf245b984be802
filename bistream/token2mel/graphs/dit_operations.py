"""The DiT's operations between matrix products, as ``operations`` are the U-Net's: eager, or compiled to one or two kernels each.

Tensors are [tiles, rows, channels] of both guidance halves, the second half's tiles and pages after the first's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import modulated
from bistream.token2mel.graphs.dit_attention import attend_projected, project_context
from bistream.token2mel.graphs.operations import compile_for_all_sizes


def windows(
    x: Tensor, tail: Tensor, previous: Tensor, last: Tensor, page: Tensor, *, history: int, number: int, count: int, groups: int
) -> Tensor:
    """The input of a grouped causal convolution as a matrix for each group, [groups, tiles * rows, (history + 1) * channels of a group];
    stores the last ``history`` frames of each tile.

    tail: [pages * history * count, channels], stored frames of ``count`` convolutions, of which this is ``number``: rows of a contiguous
    tensor, because the compiler would copy all of it, and back, to write to a part of its columns. previous: the tile of the chunk before,
    -1 where ``last`` is its page. page: where the tile's own last frames go.
    """
    frame = torch.arange(history, device=x.device)
    ends = x[:, x.shape[1] - history :]
    tail[(page[:, None] * history + frame) * count + number] = ends  # before it is read, of other pages: after that it would be copied
    stored = tail[(last[:, None] * history + frame) * count + number]
    head = torch.where((previous >= 0)[:, None, None], ends[previous.clamp(min=0)], stored)
    tiles, rows, channels = x.shape
    taps = torch.cat([head, x], dim=1).unfold(1, history + 1, 1).view(tiles, rows, groups, channels // groups, history + 1)
    return taps.permute(2, 0, 1, 4, 3).reshape(groups, tiles * rows, -1)


def advance(x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta)."""
    x = x + gate * delta.float()
    return x, modulated(x, scale, shift).to(delta.dtype)


def advance_and_keep(
    x: Tensor, delta: Tensor, pages: Tensor, page: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """``advance``, the norm stored to ``pages`` [pages, rows, width]."""
    x, normed = advance(x, delta, gate=gate, shift=shift, scale=scale)
    pages[page] = normed
    return x, normed


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The first half of a feed-forward, GELU in its tanh form."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def linear_gelu_in_one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same where the matrix library ends its product with GELU, which on CUDA is the tanh form."""
    return torch._addmm_activation(bias, x.flatten(0, 1), weight.t(), use_gelu=True).view(*x.shape[:2], -1)


@dataclass(frozen=True)
class DitOperations:
    """The functions above, eager (CPU) or compiled (GPU), and those of ``dit_attention``, plain or as kernels."""

    windows: Callable[..., Tensor]
    advance: Callable[..., tuple[Tensor, Tensor]]
    advance_and_keep: Callable[..., tuple[Tensor, Tensor]]
    linear_gelu: Callable[..., Tensor]
    project_context: Callable[..., Tensor]
    attend: Callable[..., Tensor]


def plain_operations() -> DitOperations:
    return DitOperations(windows, advance, advance_and_keep, linear_gelu, project_context, attend_projected)


def compiled_operations() -> DitOperations:
    from bistream.token2mel.graphs.cuda.attention import attend_in_kernels, project_context_in_kernel  # noqa: PLC0415  (needs Triton)

    return DitOperations(
        windows=compile_for_all_sizes(windows),
        advance=compile_for_all_sizes(advance),
        advance_and_keep=compile_for_all_sizes(advance_and_keep),
        linear_gelu=linear_gelu_in_one,
        project_context=project_context_in_kernel,
        attend=attend_in_kernels,
    )
