"""The estimator's operations between matrix products, as functions of tensors: compiled to one or two kernels each, or eager.

Rows are packed in tiles, [tiles, rows, channels], the tiles of both guidance halves one after another. The first dimension of
positional arguments may differ from call to call (tiles, pages); keyword arguments keep their shapes. So one compilation serves
batches of every size, except for attention, whose kernel is specific to a number of tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.graphs.attention import attend_flex, kernel_options
from bistream.token2mel.graphs.gathered_attention import attend_gathered

_COMPILATIONS = 64  # at most, of one function: batch sizes times channel counts


def window(x: Tensor, tail: Tensor, rows: Tensor, tail_rows: Tensor, page: Tensor, *, chunk: int) -> Tensor:
    """The input of a causal convolution of kernel 3, [tiles, rows, 3 * channels]; stores the last two frames of each chunk.

    tail: [pages, 2, channels], stored frames. rows, tail_rows: [tiles, rows, 3], where each tap reads: a row of x, or of the tails
    where that is not negative. page: [tiles], where the tile's own last frames go. chunk: frames of a whole tile.
    """
    taps = x.flatten(0, 1)[rows]
    tail[page] = x[:, chunk - 2 : chunk]  # before it is read, of other pages: after that the compiler would copy all of it, and back
    stored = tail.flatten(0, 1)[tail_rows.clamp(min=0)]
    return torch.where((tail_rows >= 0)[..., None], stored, taps).flatten(2)


def settle(x: Tensor, delta: Tensor) -> Tensor:
    """The residual stream (float32) plus the last product, in the dtype of products."""
    return (x + delta).to(delta.dtype)


def activate(x: Tensor, time_bias: Tensor, *, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm, Mish and time bias, in the dtype of x. time_bias: [1, channels]."""
    return (_mish_norm(x, weight, bias, eps) + time_bias).to(x.dtype)


def activate_stream(x: Tensor, *, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm and Mish in float32: the start of a unit's residual stream."""
    return _mish_norm(x, weight, bias, eps)


def add_norm_store(
    x: Tensor, delta: Tensor, live: Tensor, pages: Tensor, page: Tensor, *, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(x + delta, its LayerNorm in the dtype of delta), the norm stored to ``pages`` [pages, rows, width] as a whole tile.

    live: int32 [tiles]; rows after them are stored as zeros, so that a page holds only its own session's values.
    """
    x = x + delta
    normed = F.layer_norm(x, (x.shape[2],), weight, bias, eps)
    is_live = torch.arange(x.shape[1], device=x.device) < live[:, None]
    normed = torch.where(is_live[:, :, None], normed, 0.0).to(delta.dtype)
    pages[page] = normed
    return x, normed


def add_norm(x: Tensor, delta: Tensor, *, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + delta, its LayerNorm in the dtype of delta)."""
    x = x + delta
    return x, F.layer_norm(x, (x.shape[2],), weight, bias, eps).to(delta.dtype)


def _mish_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.mish(F.layer_norm(x.float(), (x.shape[2],), weight, bias, eps))


@dataclass(frozen=True)
class Operations:
    """The functions above and ``attention.attend_flex`` all eager (CPU) or all compiled (GPU)."""

    window: Callable[..., Tensor]
    settle: Callable[..., Tensor]
    activate: Callable[..., Tensor]
    activate_stream: Callable[..., Tensor]
    add_norm_store: Callable[..., tuple[Tensor, Tensor]]
    add_norm: Callable[..., tuple[Tensor, Tensor]]
    attend: Callable[..., Tensor]


def plain_operations() -> Operations:
    return Operations(window, settle, activate, activate_stream, add_norm_store, add_norm, attend_gathered)


def compiled_operations(device: torch.device, dtype: torch.dtype, width: int) -> Operations:
    """width: of a key."""
    shared_memory = int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin"))  # noqa: B009
    options = kernel_options(width, dtype.itemsize, shared_memory)
    return Operations(
        window=compile_for_all_sizes(window),
        settle=compile_for_all_sizes(settle),
        activate=compile_for_all_sizes(activate),
        activate_stream=compile_for_all_sizes(activate_stream),
        add_norm_store=compile_for_all_sizes(add_norm_store),
        add_norm=compile_for_all_sizes(add_norm),
        attend=functools.partial(compile_per_size(attend_flex), options=options),
    )


def compile_for_all_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for all first dimensions of its positional arguments."""
    compiled = compile_per_size(function)

    @functools.wraps(function)
    def call(*tensors: Tensor, **constants: Any) -> Any:
        aliases = [tensor.detach() for tensor in tensors]  # a mark stays on a tensor, which other functions receive too
        for alias in aliases:
            if alias.shape[0] > 1:
                torch._dynamo.mark_dynamic(alias, 0)
        return compiled(*aliases, **constants)

    return call


def compile_per_size(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for each set of shapes."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def many_compilations() -> AbstractContextManager[None]:
    """Inside, a function may be compiled for ``_COMPILATIONS`` sizes; the library's default limit is 8."""
    patched: AbstractContextManager[None] = torch._dynamo.config.patch(recompile_limit=_COMPILATIONS)
    return patched
