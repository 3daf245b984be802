"""The DiT's operations as kernels, for networks of 16 bit. Imported only where Triton is.

Tensors must be contiguous, those of blocks and the frames of stored inputs each by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import NORM_EPSILON
from bistream.token2mel.dit.graphs.cuda import kernels_advance, kernels_attention, kernels_context, kernels_convolution
from bistream.token2mel.dit.graphs.operations import DitOperations, PackedConv, linear_gelu_in_one
from bistream.token2mel.dit.graphs.tiles import StoredSlots, Tiles
from bistream.token2mel.state_rows import StateRows

_ROWS = 64  # frames of a program, and keys that it sees at a time
# Of the product over stored pages: the best of 14 on an H100 (docs/log); 96 KB of shared memory, which most GPUs have.
_TILE = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 128, "num_warps": 4, "num_stages": 3}
_PROGRAMS = 2  # of a multiprocessor


def convolve(x: Tensor, tail: StateRows, tiles: Tiles, conv: PackedConv) -> Tensor:
    """Grouped causal convolution, then Mish; stores the last inputs of each complete tile.

    tail: [pages, history, groups, channels of a group], stored inputs of this convolution.
    """
    (groups, kernel, width, _), frames = conv.weight.shape, tiles.frames
    out = torch.empty_like(x)
    kernels_convolution.convolve_tiles[(len(tiles.live), groups, -(-frames // _ROWS))](
        x, tail.values, tail.scales, tail.values.stride(1), tiles.begin, tiles.live, tiles.follows, tiles.last, tiles.page,
        conv.weight, conv.bias, out,
        FRAMES=frames, HISTORY=kernel - 1, DIM=x.shape[1], WIDTH=width, ROWS=_ROWS, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def advance(
    x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor, pages: StateRows | None = None, line: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta), the norm also stored to ``pages`` [pages, frames, width], each
    row to its ``line`` of them."""
    rows, channels = x.shape
    out, normed = torch.empty_like(x), torch.empty_like(delta)
    values, scales = (None, None) if pages is None else (pages.values, pages.scales)
    kernels_advance.advance_rows[(rows,)](
        x, delta, gate, shift, scale, out, normed, values, scales, line, NORM_EPSILON,
        DIM=channels, BLOCK=1 << (channels - 1).bit_length(), num_warps=4,
    )  # fmt: skip
    return out, normed


def project_context(pages: StateRows, stored: StoredSlots, weight: StateRows, bias: Tensor, table: Tensor) -> Tensor:
    """Keys, turned, and values of stored pages, [blocks, slots, frames, 2 * width]; what no tile sees may be anything.

    pages: block inputs, [blocks, 2 * pages, frames, dim]. weight: [blocks, 2 * width, dim]; bias: [blocks, 2 * width]. table: of ``turns``.
    """
    assert pages.scales is not None and weight.scales is not None
    (blocks, _, frames, dim), width, slots = pages.values.shape, weight.values.shape[1], len(stored.page)
    out = torch.empty(blocks, slots, frames, width, dtype=bias.dtype, device=bias.device)
    programs = _PROGRAMS * torch.cuda.get_device_properties(bias.device).multi_processor_count
    kernels_context.project_pages[(programs,)](
        pages.values, pages.values.stride(0), pages.scales, pages.scales.stride(0), stored.page, stored.used, stored.start,
        weight.values, weight.values.stride(0), weight.scales, bias, bias.stride(0), table, table[0].numel(),
        out, out.stride(0), slots // 2, blocks, FRAMES=frames, DIM=dim, OUT=width, WIDTH=2 * table.shape[2], **_TILE,
    )  # fmt: skip
    return out


def attend(own: Tensor, context: Tensor, table: Tensor, tiles: Tiles, heads: int, scale: float) -> Tensor:
    """[rows, heads * width]; zeros for a tile that sees nothing. table: of ``turns``.

    own: queries, keys and values, [rows, 3 * heads * width]. context: of ``project_context``, one block.
    """
    (rows, width), frames = own.shape, tiles.frames
    channels = width // 3
    out = torch.empty(rows, channels, dtype=own.dtype, device=own.device)
    kernels_attention.attend_slots[(len(tiles.live), heads, -(-frames // _ROWS))](
        own, context, out, tiles.begin, tiles.live, tiles.start, tiles.visible, tiles.lists, tiles.lists.shape[1], table, table[0].numel(),
        len(context), scale, FRAMES=frames, HEADS=heads, WIDTH=channels // heads, ROWS=_ROWS, STAGES=3, num_warps=4,
    )  # fmt: skip
    return out


def gpu_operations() -> DitOperations:
    return DitOperations(convolve, advance, linear_gelu_in_one, project_context, attend)
