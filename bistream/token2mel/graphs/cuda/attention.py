"""``dit_attention.attend_projected`` in one kernel. Imported only where Triton is."""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.token2mel.graphs.cuda.kernels_attention import attend_slots
from bistream.token2mel.graphs.dit_attention import Slots

_ROWS = 64  # queries of a program, and keys that it sees at a time


def attend_in_kernel(query: Tensor, projected: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """As ``dit_attention.attend_projected``. All tensors must be contiguous, and heads have 2 ** n channels, at least 16."""
    tiles, frames, channels = query.shape
    out = torch.empty_like(query)
    grid = (tiles, heads, -(-frames // _ROWS))
    attend_slots[grid](
        query, projected, out, table, table[0].numel(), slots.start, slots.live, slots.visible, slots.lists, slots.lists.shape[1],
        len(slots.start) - tiles, scale, FRAMES=frames, HEADS=heads, WIDTH=channels // heads, ROWS=_ROWS,
    )  # fmt: skip
    return out
