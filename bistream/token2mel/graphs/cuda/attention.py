"""The functions of ``dit_attention`` as one kernel each. Imported only where Triton is. All tensors must be contiguous within a block."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from bistream.token2mel.graphs.cuda.kernels_attention import attend_slots
from bistream.token2mel.graphs.cuda.kernels_context import project_pages
from bistream.token2mel.graphs.dit_attention import Slots

_ROWS = 64  # queries of a program, and keys that it sees at a time
_FEW_ROWS = 4096  # rows of a product with fewer are divided more finely, so that all multiprocessors have some


def project_context_in_kernel(pages: Tensor, slots: Slots, weight: Tensor, bias: Tensor) -> Tensor:
    """As ``dit_attention.project_context``."""
    blocks, _, frames, dim = pages.shape
    width, stored = weight.shape[1], len(slots.page)
    out = torch.empty(blocks, stored, frames, width, dtype=pages.dtype, device=pages.device)
    rows, columns, warps, stages = _tile(stored * frames, _shared_memory(pages.device))
    programs = torch.cuda.get_device_properties(pages.device).multi_processor_count
    project_pages[(programs * (2 if rows * columns <= 128 * 64 else 1),)](
        pages, pages.stride(0), slots.page, slots.used, weight, weight.stride(0), bias, bias.stride(0), out, out.stride(0),
        stored // 2, blocks, FRAMES=frames, DIM=dim, OUT=width, ROWS=rows, COLUMNS=columns, DEPTH=64,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def attend_in_kernel(own: Tensor, context: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """As ``dit_attention.attend_projected``. Heads must have 2 ** n channels, at least 16."""
    tiles, frames, channels = own.shape[0], own.shape[1], own.shape[2] // 3
    out = torch.empty(tiles, frames, channels, dtype=own.dtype, device=own.device)
    grid = (tiles, heads, -(-frames // _ROWS))
    attend_slots[grid](
        own, context, out, table, table[0].numel(), slots.start, slots.live, slots.visible, slots.lists, slots.lists.shape[1],
        len(slots.page), scale, FRAMES=frames, HEADS=heads, WIDTH=channels // heads, ROWS=_ROWS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@functools.cache
def _shared_memory(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin"))  # noqa: B009


def _tile(rows: int, shared_memory: int) -> tuple[int, int, int, int]:
    """Rows and columns of a tile of the product, warps and stages. Operands of 16 bit, 64 deep."""
    if rows <= _FEW_ROWS:
        return 64, 128, 4, 3
    if shared_memory >= 160_000:
        return 128, 256, 8, 3
    return 128, 128, 8, 2
