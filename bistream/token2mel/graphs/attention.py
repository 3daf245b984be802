"""Attention of query tiles over pages with ``flex_attention``, on a GPU. ``gathered_attention`` is a plain form of the same sums.

A tile of queries sees the pages of its list. Pages are keys and values at once, shared by all heads (the U-Net's, ``weights``). Lists hold
page numbers, so nothing is gathered; their lengths are read on the device, so one recorded graph serves contexts of any length.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

# Queries and keys of a program, warps, pipeline stages: the first entry that fits into a multiprocessor's shared memory is used.
_TILES = ((64, 64, 4, 2), (64, 32, 4, 3), (64, 32, 4, 2), (32, 32, 4, 2), (32, 16, 4, 2), (16, 16, 4, 1))
_USABLE_SHARED_MEMORY = 0.9


def kernel_options(width: int, bytes_per_number: int, shared_memory: int) -> dict[str, int]:
    """Sizes for ``flex_attention`` with keys of ``width`` numbers and ``shared_memory`` bytes per program.

    On GPUs that it is not tuned for, the library chooses 128 queries per program, more than a tile has.
    """
    for queries, keys, warps, stages in _TILES:  # noqa: B007  (the last entry if none fits)
        if (queries + 2 * keys * stages) * width * bytes_per_number <= _USABLE_SHARED_MEMORY * shared_memory:
            break
    return {"BLOCK_M": queries, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}


def attend_flex(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    lists: Tensor,
    page_live: Tensor,
    heads: int,
    scale: float,
    options: Any,
) -> Tensor:
    """query: [tiles, rows, heads * width]; the result has its shape. Zeros for a tile that sees nothing.

    keys, values: [pages, rows, width], shared by all heads.
    visible: int32 [tiles], pages of each tile's list; lists: int32 [tiles, longest].
    page_live: int32 [pages], rows of each page that are keys. Call it compiled: in eager mode the library ignores the lists.
    """
    tiles, rows, channels = query.shape
    width = channels // heads

    def is_key(batch: Tensor, head: Tensor, query_row: Tensor, key_row: Tensor) -> Tensor:
        return key_row % rows < page_live[key_row // rows]

    keys, values = (pages.view(1, -1, pages.shape[2] // width, width).transpose(1, 2) for pages in (keys, values))
    count, index = visible[None, None], lists[None, None]
    lengths = (tiles * rows, keys.shape[2])
    mask = BlockMask(lengths, count, index, None, None, None, None, None, None, (rows, rows), is_key)
    split = query.view(1, tiles * rows, heads, width).transpose(1, 2)
    out = flex_attention(split, keys, values, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=options)
    return out.transpose(1, 2).reshape(query.shape)
