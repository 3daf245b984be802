"""Attention of rows over the paged cache, in plain PyTorch: each row attends to its own sequence up to its own position.

In: queries of a step's rows, a layer's blocks of ``PagedCache``, an ``AttentionPlan`` (made once per step from the block tables).
Out: one vector per row. This is the reference and the CPU path; a fused kernel needs only slot and position of each row.

Rows of one sequence share its keys, so rows are computed per segment: segments with few rows together, padded; long ones
(chunks of prompts) one by one. On a CPU with one thread, rows that decode are a group of their own, of one row each, for PyTorch's own
attention.

Results are batch-invariant to the last bit, provided that the matrix library's are: padding adds exact zeros at the end, sums
over the context run in tiles of fixed size (libraries split long sums depending on their length), and every product has at
least ``MIN_PRODUCT_ROWS`` rows (libraries switch to another kernel below that; measured with MKL), or always a single one, whose
sums are not split. On processors with AMX, MKL's are not, unless the process begins with ``MKL_CBWR=AUTO,STRICT``
(``docs/operations.md``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

SHORT_ROWS = 8  # segments up to this long are computed together
MIN_PRODUCT_ROWS = 4
CONTEXT_TILE = 128


@dataclass(frozen=True)
class RowGroup:
    """Segments computed together: S segments of R rows (padded by repeating the last), context of C positions."""

    rows: Tensor  # [S, R] indices into the step's rows
    blocks: Tensor  # [S, C / block_size] block numbers, padded with any block
    hidden: Tensor  # [S, R, C] bool: True where the row must not attend; of rows that decode the same as float, minus infinity there
    outside: Tensor  # [S, T] bool, of the last T positions: True after the segment's last one; before them all are inside

    @property
    def decodes(self) -> bool:
        return self.hidden.is_floating_point()


AttentionPlan = Sequence[RowGroup]


def plan_attention(
    positions: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device,
    decoding: Collection[int] = (),
) -> AttentionPlan:
    """positions: (first position, number of rows) per segment, in the order of the rows; tables: the sequences' blocks. decoding: the
    segments whose row decodes. That must not depend on their company, for the bits of a row do depend on it."""
    starts = np.cumsum([0] + [count for _, count in positions])
    decoding = decoding if device.type == "cpu" and torch.get_num_threads() == 1 else ()  # more threads divide a row by its company
    fed = [index for index in range(len(positions)) if index not in decoding]
    short = [index for index in fed if positions[index][1] <= SHORT_ROWS]
    long = [[index] for index in fed if positions[index][1] > SHORT_ROWS]
    return [
        _group([positions[index] for index in members], starts[members], [tables[index] for index in members], block_size, device, decodes)
        for members, decodes in ((list(decoding), True), (short, False), *((each, False) for each in long))
        if members
    ]


def _group(
    positions: Sequence[tuple[int, int]],
    starts: NDArray[np.int64],
    tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device,
    decodes: bool,
) -> RowGroup:
    first = np.array([position for position, _ in positions])[:, None]
    count = np.array([number for _, number in positions])[:, None]
    num_rows = 1 if decodes else max(int(count.max()), MIN_PRODUCT_ROWS)
    steps = np.minimum(np.arange(num_rows)[None, :], count - 1)  # [S, R]
    num_blocks = -(-int((first + count).max()) // block_size)
    blocks = np.zeros((len(tables), num_blocks), dtype=np.int64)
    for row, table in enumerate(tables):
        used = min(num_blocks, len(table))
        blocks[row, :used] = table[:used]
    context = np.arange(num_blocks * block_size)
    hidden = context[None, None, :] > (first + steps)[:, :, None]
    outside = context[None, int((first + count).min()) :] >= first + count
    if decodes:
        hidden = np.where(hidden, np.float32(-np.inf), np.float32(0))
    arrays = (starts[:, None] + steps, blocks, hidden, outside)
    return RowGroup(*(torch.from_numpy(array).to(device) for array in arrays))


def attend_rows(query: Tensor, keys_values: Tensor, plan: AttentionPlan) -> Tensor:
    """query [n, heads, head_size]; keys_values [2, num_blocks, block_size, kv_heads, head_size] -> [n, heads * head_size]."""
    num_rows, heads, head_size = query.shape
    kv_heads = keys_values.shape[3]
    result = torch.zeros_like(query)  # rows of no segment are padding
    for group in plan:
        segments, rows = group.rows.shape
        both = keys_values.index_select(1, group.blocks.view(-1)).view(2, segments, -1, kv_heads, head_size)
        # memory after the sequence is arbitrary, even NaN of a session that failed, and neither zero times NaN nor NaN below a mask is zero
        both[:, :, both.shape[2] - group.outside.shape[1] :].masked_fill_(group.outside[:, :, None, None], 0)
        key, value = both.transpose(2, 3).unbind()  # each [S, kv_heads, C, head_size]
        if group.decodes:
            each = query[group.rows].transpose(1, 2)
            mask = group.hidden[:, None].to(query.dtype)
            attended = functional.scaled_dot_product_attention(each, key, value, mask, enable_gqa=True).transpose(1, 2)
        else:
            grouped = query[group.rows].view(segments, rows, kv_heads, heads // kv_heads, head_size).permute(0, 2, 1, 3, 4)
            attended = _softmax_attention(grouped, key.transpose(2, 3), value, group.hidden).permute(0, 2, 1, 3, 4)
        result[group.rows] = attended.reshape(segments, rows, heads, head_size)
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
