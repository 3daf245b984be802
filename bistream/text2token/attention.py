"""Attention of rows over the paged cache, in plain PyTorch: each row attends to its own sequence up to its own position.

In: queries of a step's rows, a layer's blocks of ``PagedCache``, an ``AttentionPlan`` (made once per step from the block tables).
Out: one vector per row. This is the reference and the CPU path; a fused kernel needs only slot and position of each row.

Rows of one sequence share its keys, so rows are computed per segment: segments with few rows together, padded; long ones
(chunks of prompts) one by one.

Results are batch-invariant to the last bit, provided that the matrix library's are: padding adds exact zeros at the end, sums
over the context run in tiles of fixed size (libraries split long sums depending on their length), and every product has at
least ``MIN_PRODUCT_ROWS`` rows (libraries switch to another kernel below that; measured with MKL). On processors with AMX,
MKL's are not, unless the process begins with ``MKL_CBWR=AUTO,STRICT`` (``docs/operations.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHORT_ROWS = 8  # segments up to this long are computed together
MIN_PRODUCT_ROWS = 4
CONTEXT_TILE = 128


@dataclass(frozen=True)
class RowGroup:
    """Segments computed together: S segments of R rows (padded by repeating the last), context of C positions."""

    rows: Tensor  # [S, R] indices into the step's rows
    blocks: Tensor  # [S, C / block_size] block numbers, padded with any block
    hidden: Tensor  # [S, R, C] bool: True where the row must not attend
    outside: Tensor  # [S, T] bool, of the last T positions: True after the segment's last one; before them all are inside


@dataclass(frozen=True)
class AttentionPlan:
    groups: tuple[RowGroup, ...]


def plan_attention(
    positions: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], block_size: int, device: torch.device
) -> AttentionPlan:
    """positions: (first position, number of rows) per segment, in the order of the rows; tables: the sequences' blocks."""
    starts = np.cumsum([0] + [count for _, count in positions])
    short = [index for index, (_, count) in enumerate(positions) if count <= SHORT_ROWS]
    long = [[index] for index, (_, count) in enumerate(positions) if count > SHORT_ROWS]
    groups = [
        _group([positions[index] for index in members], starts[members], [tables[index] for index in members], block_size, device)
        for members in (short, *long)
        if members
    ]
    return AttentionPlan(tuple(groups))


def _group(
    positions: Sequence[tuple[int, int]], starts: NDArray[np.int64], tables: Sequence[Sequence[int]], block_size: int, device: torch.device
) -> RowGroup:
    first = np.array([position for position, _ in positions])[:, None]
    count = np.array([number for _, number in positions])[:, None]
    steps = np.minimum(np.arange(max(int(count.max()), MIN_PRODUCT_ROWS))[None, :], count - 1)  # [S, R]
    num_blocks = -(-int((first + count).max()) // block_size)
    blocks = np.zeros((len(tables), num_blocks), dtype=np.int64)
    for row, table in enumerate(tables):
        used = min(num_blocks, len(table))
        blocks[row, :used] = table[:used]
    context = np.arange(num_blocks * block_size)
    hidden = context[None, None, :] > (first + steps)[:, :, None]
    outside = context[None, int((first + count).min()) :] >= first + count
    arrays = (starts[:, None] + steps, blocks, hidden, outside)
    return RowGroup(*(torch.from_numpy(array).to(device) for array in arrays))


def attend_rows(query: Tensor, keys_values: Tensor, plan: AttentionPlan) -> Tensor:
    """query [n, heads, head_size]; keys_values [2, num_blocks, block_size, kv_heads, head_size] -> [n, heads * head_size]."""
    num_rows, heads, head_size = query.shape
    kv_heads = keys_values.shape[3]
    result = torch.zeros_like(query)  # rows of no segment are padding
    for group in plan.groups:
        segments, rows = group.rows.shape
        gathered = keys_values.index_select(1, group.blocks.view(-1))
        key, value = gathered.view(2, segments, -1, kv_heads, head_size).unbind()  # each [S, C, kv_heads, head_size]
        # memory after the sequence is arbitrary, even NaN of a session that failed, and zero times NaN is NaN
        value[:, value.shape[1] - group.outside.shape[1] :].masked_fill_(group.outside[:, :, None, None], 0)
        grouped = query[group.rows].view(segments, rows, kv_heads, heads // kv_heads, head_size).permute(0, 2, 1, 3, 4)
        attended = _softmax_attention(grouped, key.permute(0, 2, 3, 1), value.permute(0, 2, 1, 3), group.hidden)
        result[group.rows] = attended.permute(0, 2, 1, 3, 4).reshape(segments, rows, heads, head_size)
    return result.view(num_rows, heads * head_size)


def attend_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One whole sequence without a cache. query [n, heads, head_size], key, value [n, kv_heads, head_size]."""
    num_rows, heads, head_size = query.shape
    kv_heads = key.shape[1]
    hidden = torch.ones((1, num_rows, num_rows), dtype=torch.bool, device=query.device).triu(1)
    grouped = query.view(1, num_rows, kv_heads, heads // kv_heads, head_size).permute(0, 2, 1, 3, 4)
    attended = _softmax_attention(grouped, key.permute(1, 2, 0)[None], value.permute(1, 0, 2)[None], hidden)
    return attended.permute(0, 2, 1, 3, 4).reshape(num_rows, heads * head_size)


def _softmax_attention(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
    """query [S, kv_heads, R, share, head_size], key [S, kv_heads, head_size, C], value [S, kv_heads, C, head_size]."""
    segments, kv_heads, rows, share, head_size = query.shape
    query, key = query.reshape(segments * kv_heads, rows * share, head_size), key.reshape(segments * kv_heads, head_size, -1)
    value = value.reshape(segments * kv_heads, -1, head_size)
    scores = torch.bmm(query, key).float() * head_size**-0.5
    scores.view(segments, kv_heads, rows, share, -1).masked_fill_(hidden[:, None, :, None, :], -torch.inf)
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    result = torch.bmm(weights[..., :CONTEXT_TILE], value[:, :CONTEXT_TILE])
    for start in range(CONTEXT_TILE, value.shape[1], CONTEXT_TILE):
        tile = slice(start, start + CONTEXT_TILE)
        result.baddbmm_(weights[..., tile], value[:, tile])
    return result.view(segments, kv_heads, rows, share, head_size)
