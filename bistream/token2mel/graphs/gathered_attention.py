"""Attention of query tiles over the pages of their lists, by gathering them: for the CPU, and as reference of both flows' kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
