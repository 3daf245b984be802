"""The functions of ``dit_attention`` as kernels. Imported only where Triton is. Tensors must be contiguous, those of blocks within each."""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.token2mel.graphs.cuda.kernels_attention import attend_slots, turn_tiles
from bistream.token2mel.graphs.cuda.kernels_context import project_pages
from bistream.token2mel.graphs.dit_attention import Slots

_ROWS = 64  # queries of a program, and keys that it sees at a time
# Of the product over stored pages. Faster than the matrix library on an H200 (docs/log.md); 96 KB of shared memory, which most GPUs have.
_TILE = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
_PROGRAMS = 2  # of a multiprocessor


def project_context_in_kernel(pages: Tensor, slots: Slots, weight: Tensor, bias: Tensor, table: Tensor) -> Tensor:
    """As ``dit_attention.project_context``. Heads must have an even number of channels."""
    blocks, _, frames, dim = pages.shape
    width, stored = weight.shape[1], len(slots.page)
    out = torch.empty(blocks, stored, frames, width, dtype=pages.dtype, device=pages.device)
    programs = _PROGRAMS * torch.cuda.get_device_properties(pages.device).multi_processor_count
    project_pages[(programs,)](
        pages, pages.stride(0), slots.page, slots.used, slots.start, weight, weight.stride(0), bias, bias.stride(0), table,
        table[0].numel(), out, out.stride(0), stored // 2, blocks, FRAMES=frames, DIM=dim, OUT=width, WIDTH=2 * table.shape[2], **_TILE,
    )  # fmt: skip
    return out


def attend_in_kernels(own: Tensor, context: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """As ``dit_attention.attend_projected``; turns the queries and keys of ``own``. Heads must have 2 ** n channels, at least 16."""
    tiles, frames, channels = own.shape[0], own.shape[1], own.shape[2] // 3
    blocks, stored, head_size = -(-frames // _ROWS), len(slots.page), channels // heads
    turn_tiles[(tiles, 2, blocks)](
        own, table, table[0].numel(), slots.start[stored:], FRAMES=frames, CHANNELS=channels, WIDTH=head_size, ROWS=_ROWS
    )
    out = torch.empty(tiles, frames, channels, dtype=own.dtype, device=own.device)
    attend_slots[(tiles, heads, blocks)](
        own, context, out, slots.live, slots.visible, slots.lists, slots.lists.shape[1], stored, scale,
        FRAMES=frames, HEADS=heads, WIDTH=head_size, ROWS=_ROWS, STAGES=3, num_warps=4,
    )  # fmt: skip
    return out
