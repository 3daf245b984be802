"""Attention of the DiT's tiles over slots, which hold keys and values as their projections leave them: first those of stored pages, then
those of the tiles themselves, which lie beside their queries.

Plain forms, for the CPU and as reference of the kernels (``cuda``). Positions are turned here, as ``dit.estimator.rotate`` does: the first
channels, as many as a head has, of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import rotation
from bistream.token2mel.state_rows import StateRows


@dataclass(frozen=True)
class Slots:
    """What a batch reads and its tiles see, of both guidance halves: all that is stored, then all tiles.

    page: int64 [2 * stored], of stored pages; used: int32 [1], how many of each half the batch reads, the first ones.
    start, live: int32 [slots], position of a slot's first frame, and how many of its frames are keys. visible: int32 [tiles], how many
    slots a tile sees; lists: int32 [tiles, longest], which.
    """

    page: Tensor
    used: Tensor
    start: Tensor
    live: Tensor
    visible: Tensor
    lists: Tensor


def turns(positions: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotation at positions from 0 on, float32 [2, positions, head_size / 2]."""
    (angles,) = rotation(torch.zeros(1, dtype=torch.int64, device=device), positions, head_size)
    return torch.stack([angles.cos(), angles.sin()])


def project_context(pages: StateRows, slots: Slots, weight: Tensor, bias: Tensor, table: Tensor) -> Tensor:
    """Keys, turned, and values of stored pages, [blocks, 2 * stored, frames, 2 * width]; what no tile sees may be anything.

    pages: block inputs, [blocks, 2 * pages, frames, dim]. weight: [blocks, 2 * width, dim]; bias: [blocks, 2 * width]. table: of ``turns``.
    """
    seen = pages.read(1, slots.page).to(weight.dtype)
    projected = torch.baddbmm(bias[:, None], seen.flatten(1, 2), weight.transpose(1, 2)).view(*seen.shape[:3], -1)
    return torch.stack([_turned(block, table, slots.start[: len(slots.page)]) for block in projected])


def attend_projected(own: Tensor, context: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """[tiles, frames, heads * width]; zeros for a tile that sees nothing. table: of ``turns``.

    own: queries, keys and values of the tiles, [tiles, frames, 3 * heads * width]. context: of ``project_context``, one block.
    """
    query, own_keys, own_values = own.chunk(3, dim=2)
    context_keys, context_values = context.chunk(2, dim=2)
    query, own_keys = (_turned(x, table, slots.start[len(context) :]) for x in (query, own_keys))
    key, value = torch.cat([context_keys, own_keys]), torch.cat([context_values, own_values])
    return attend_gathered(query, key, value, slots.visible, slots.lists, slots.live, heads, scale)


def attend_gathered(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, lists: Tensor, page_live: Tensor, heads: int, scale: float
) -> Tensor:
    """query: [tiles, rows, heads * width]; the result has its shape. Zeros for a tile that sees nothing.

    keys, values: [pages, rows, width], shared by all heads, or [pages, rows, heads * width].
    visible: int32 [tiles], pages of each tile's list; lists: int32 [tiles, longest]. page_live: int32 [pages], rows of each page that are
    keys.
    """
    tiles, rows, _ = query.shape
    longest = int(visible.max())
    if longest == 0:
        return torch.zeros_like(query)
    index = lists[:, :longest].long()
    is_listed = torch.arange(longest, device=query.device) < visible[:, None]
    is_live = torch.arange(rows, device=query.device) < page_live[index][:, :, None]
    is_key = (is_listed[:, :, None] & is_live).flatten(1)
    is_row = is_listed.repeat_interleave(rows, dim=1)[:, :, None]
    split = query.view(tiles, rows, heads, -1).transpose(1, 2)

    def of_heads(pages: Tensor) -> Tensor:
        """[tiles, heads, longest * rows, width]"""
        gathered = pages[index].flatten(1, 2).masked_fill(~is_row, 0.0)
        return gathered.view(*gathered.shape[:2], -1, split.shape[3]).transpose(1, 2).expand(-1, heads, -1, -1)

    mask = is_key[:, None, None, :].expand(-1, 1, rows, -1)
    out = F.scaled_dot_product_attention(split, of_heads(keys), of_heads(values), attn_mask=mask, scale=scale)
    out = torch.where(is_key.any(dim=1)[:, None, None, None], out, 0.0)
    return out.transpose(1, 2).flatten(2)


def _turned(x: Tensor, table: Tensor, start: Tensor) -> Tensor:
    positions = start[:, None].long() + torch.arange(x.shape[1], device=x.device)
    cosine, sine = table[:, positions]
    width = 2 * cosine.shape[2]
    even, odd = x[:, :, 0:width:2].float(), x[:, :, 1:width:2].float()
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[:, :, width:]], dim=-1)
