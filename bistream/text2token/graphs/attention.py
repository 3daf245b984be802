"""Attention of a step's rows over the paged cache with ``flex_attention``: every row is a query of length 1 with its own blocks.

In: queries of a step's rows, one layer's memory, ``BlockLists`` (made once per step from block table and positions). Out: one
vector per row. One graph serves every mix of prompt, appended and decoding rows and every context length, because block counts are
read at run time.

The template of PyTorch 2.11 and later splits the blocks of a row over ``SPLIT_KV`` programs and combines their results in float32, but
only without a list of full blocks (with one it splits the whole memory); so there is one list, and the mask is applied to all of its
blocks. It hides the positions after the row's own in its last block: one interval of physical positions.

Masked scores are minus infinity before the softmax, so masked keys may hold anything; masked values are multiplied by zero, so they
must be finite: memory is zeroed once, and ``layer`` stores only finite values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK_SIZE = 64  # positions per block: one tile of the template
QUERY_BLOCK = 128  # the template requires a multiple of its query tile


class AttentionOptions(NamedTuple):
    """See ``GraphTuning``."""

    splits: int
    num_warps: int
    num_stages: int


class BlockLists(NamedTuple):
    """The context of a step's rows. Physical positions are ``block * BLOCK_SIZE + offset``."""

    counts: Tensor  # int32 [n]: number of blocks of the row
    blocks: Tensor  # int32 [n, blocks of the longest sequence]; after the row's count, any block
    hidden_from: Tensor  # int32 [n]: first physical position of the row's last block that it must not see
    hidden_to: Tensor  # int32 [n]: end of that block


def list_blocks(table: Tensor, slots: Tensor, positions: Tensor) -> BlockLists:
    """table: int32 [slots, blocks of the longest sequence]; slots, positions: int64 [n], a row sees positions up to its own."""
    blocks = table[slots]
    number = positions // BLOCK_SIZE
    start = blocks.gather(1, number[:, None])[:, 0] * BLOCK_SIZE
    hidden_from = start + (positions % BLOCK_SIZE).int() + 1
    return BlockLists((number + 1).int(), blocks, hidden_from, start + BLOCK_SIZE)


def attend(query: Tensor, memory: Tensor, lists: BlockLists, options: AttentionOptions) -> Tensor:
    """query [n, heads, 1, head_size], memory [2 (key, value), positions, kv_heads, head_size] -> [n, heads * head_size]."""
    rows, num_positions = len(query), memory.shape[1]
    mask = BlockMask(
        (1, num_positions), lists.counts.view(rows, 1, 1), lists.blocks.view(rows, 1, 1, -1), None, None, None, None, None, None,
        BLOCK_SIZE=(QUERY_BLOCK, BLOCK_SIZE), mask_mod=_mask_of(lists, num_positions),
    )  # fmt: skip
    # IS_DIVISIBLE: all blocks are whole, so loads need no bounds check
    template: Any = {
        "BLOCK_N": BLOCK_SIZE, "SPLIT_KV": options.splits, "num_warps": options.num_warps, "num_stages": options.num_stages,
        "IS_DIVISIBLE": True,
    }  # fmt: skip
    keys, values = memory.transpose(1, 2)[:, None]
    attended = flex_attention(query, keys, values, block_mask=mask, enable_gqa=True, kernel_options=template)
    assert isinstance(attended, Tensor)
    return attended.reshape(rows, -1)


def _mask_of(lists: BlockLists, num_positions: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Compiled code visits only listed blocks. In eager mode ``flex_attention`` uses only the mask, which must then exclude the others."""

    def within_last_block(row: Tensor, head: Tensor, query: Tensor, position: Tensor) -> Tensor:
        return (position < lists.hidden_from[row]) | (position >= lists.hidden_to[row])

    if torch.compiler.is_compiling():
        return within_last_block
    listed = _listed(lists, num_positions // BLOCK_SIZE)

    def complete(row: Tensor, head: Tensor, query: Tensor, position: Tensor) -> Tensor:
        return listed[row, position // BLOCK_SIZE] & within_last_block(row, head, query, position)

    return complete


def _listed(lists: BlockLists, num_blocks: int) -> Tensor:
    """bool [n, num_blocks]: the blocks listed for each row."""
    counted = torch.arange(lists.blocks.shape[1], device=lists.blocks.device) < lists.counts[:, None]
    blocks = torch.where(counted, lists.blocks, num_blocks).long()
    return torch.zeros((len(blocks), num_blocks + 1), dtype=torch.bool, device=blocks.device).scatter_(1, blocks, True)[:, :num_blocks]
