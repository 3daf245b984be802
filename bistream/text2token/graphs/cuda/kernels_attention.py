# mypy: ignore-errors
"""Attention of a step's rows over the paged cache, for one row and key/value head per program, or several programs.

A row's positions are cut into parts, counted from position 0, of a split for each warp. Every split has a softmax (base 2) of its own; a
warp's are joined in ascending order, then those of the warps. All this is the same for every number of rows and of programs, and so are the
results.

Keys lie in the cache as [positions, HEAD], values as [HEAD, positions] of a block. So every operand of a product is loaded into the
registers in which the matrix instruction takes it (m16n8k16: lane n * 4 + q holds 4 or 8 consecutive numbers of row n), without shared
memory: the order of summands in a product is free, as long as it is the same in both operands.

Values after a row's position have weight zero and are finite: the cache is zeroed once, and only finite values are stored. Keys may be
anything there, for their scores are replaced.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.batch import NUM_FIELDS, RowField
from bistream.text2token.graphs.cuda.pieces_linear import fits, prefetch

FIELDS = tl.constexpr(NUM_FIELDS)
SLOT = tl.constexpr(int(RowField.SLOT))
POSITION = tl.constexpr(int(RowField.POSITION))
ORDER = tl.constexpr(int(RowField.ORDER))
WARP_COUNT = 4  # affects results, as SPLIT does
WARPS = tl.constexpr(WARP_COUNT)
HIDDEN_SCORE = tl.constexpr(-1e30)


@triton.jit
def _query(q_ptr, row, kv_head, HEADS: tl.constexpr, HEAD: tl.constexpr, SHARE: tl.constexpr, RUN: tl.constexpr):
    """The query heads of a key/value head as left operand [WARPS, 16, HEAD], the same for all warps; the last one is repeated."""
    lane = tl.arange(0, 4)[:, None, None, None, None, None]
    eighth = tl.arange(0, 8)[None, :, None, None, None, None]
    warp = tl.arange(0, WARPS)[None, None, :, None, None, None]
    group = tl.arange(0, HEAD // (4 * RUN))[None, None, None, :, None, None]
    half = tl.arange(0, 2)[None, None, None, None, :, None]
    element = tl.arange(0, RUN)[None, None, None, None, None, :]
    head = kv_head * SHARE + tl.minimum(half * 8 + eighth, SHARE - 1)
    q = tl.load(q_ptr + (row * HEADS + head) * HEAD + group * (4 * RUN) + lane * RUN + element + warp * 0)
    q = tl.reshape(q, (4, 8, WARPS, HEAD // (4 * RUN), 2, RUN // 4, 2, 2))  # lane, eighth, warp, group, half, k16, k8, k1
    return tl.reshape(tl.permute(q, (2, 4, 1, 3, 5, 6, 0, 7)), (WARPS, 16, HEAD))


@triton.jit
def _keys(keys_ptr, first, exists, kv_head, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, SPLIT: tl.constexpr, RUN: tl.constexpr):
    """Keys of SPLIT positions per warp, from position ``first`` of the cache on: the right operand [WARPS, HEAD, SPLIT].

    Column c is position ``_position_of(c)`` of the split.
    """
    lane = tl.arange(0, 4)[:, None, None, None, None, None]
    eighth = tl.arange(0, 8)[None, :, None, None, None, None]
    group = tl.arange(0, HEAD // (4 * RUN))[None, None, None, :, None, None]
    tile = tl.arange(0, SPLIT // 8)[None, None, None, None, :, None]
    element = tl.arange(0, RUN)[None, None, None, None, None, :]
    position = first[None, None, :, None, None, None] + _position_of(tile * 8 + eighth)
    at = (position * KV_HEADS + kv_head) * HEAD + group * (4 * RUN) + lane * RUN + element
    keys = tl.load(keys_ptr + at, mask=exists[None, None, :, None, None, None], other=0.0, eviction_policy="evict_first")
    keys = tl.reshape(keys, (4, 8, WARPS, HEAD // (4 * RUN), SPLIT // 8, RUN // 4, 2, 2))  # lane, eighth, warp, group, tile, k16, k8, k1
    return tl.reshape(tl.permute(keys, (2, 3, 5, 6, 0, 7, 4, 1)), (WARPS, HEAD, SPLIT))


@triton.jit
def _position_of(column):
    """Lane q of the scores' product holds columns q * 2 and q * 2 + 1 of every 8; of 32 columns these are 8 consecutive positions."""
    return column // 32 * 32 + column % 8 // 2 * 8 + column // 8 % 4 * 2 + column % 2


@triton.jit
def _values(
    values_ptr, block, place, exists, kv_head, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr
):
    """Values of the same positions: the right operand [WARPS, SPLIT, HEAD]. place: of the split in its block."""
    lane = tl.arange(0, 4)[:, None, None, None, None, None]
    eighth = tl.arange(0, 8)[None, :, None, None, None, None]
    group = tl.arange(0, SPLIT // 32)[None, None, None, :, None, None]
    tile = tl.arange(0, HEAD // 8)[None, None, None, None, :, None]
    element = tl.arange(0, 8)[None, None, None, None, None, :]
    row = (block * KV_HEADS + kv_head)[None, None, :, None, None, None] * HEAD + tile * 8 + eighth
    at = row * BLOCK + place[None, None, :, None, None, None] + group * 32 + lane * 8 + element
    values = tl.load(values_ptr + at, mask=exists[None, None, :, None, None, None], other=0.0, eviction_policy="evict_first")
    values = tl.reshape(values, (4, 8, WARPS, SPLIT // 32, HEAD // 8, 2, 2, 2))  # lane, eighth, warp, group, tile, k16, k8, k1
    return tl.reshape(tl.permute(values, (2, 3, 5, 6, 0, 7, 4, 1)), (WARPS, SPLIT, HEAD))


@triton.jit
def _part(q, keys, values, start, last, SPLIT: tl.constexpr, SCALE: tl.constexpr):
    """Softmax of a part: maximum and sum of weights [WARPS, 16], weighted values [WARPS, 16, HEAD]."""
    is_seen = start[:, None, None] + _position_of(tl.arange(0, SPLIT))[None, None, :] <= last
    scores = tl.where(is_seen, tl.dot(q, keys) * SCALE, HIDDEN_SCORE)
    highest = tl.max(scores, axis=2)
    weights = tl.where(is_seen, tl.exp2(scores - highest[:, :, None]), 0.0)
    return highest, tl.sum(weights, axis=2), tl.dot(weights.to(values.dtype), values)


@triton.jit
def _join(highest, total, attended, part_highest, part_total, part_attended):
    """The softmax of all parts so far and of the next one."""
    raised = tl.maximum(highest, part_highest)
    before, after = tl.exp2(highest - raised), tl.exp2(part_highest - raised)
    attended = attended * before[:, :, None] + part_attended * after[:, :, None]
    return raised, total * before + part_total * after, attended


@triton.jit
def _merge_warps(highest, total, attended, HEAD: tl.constexpr):
    """[WARPS, 16, HEAD] -> [16, HEAD], normalised. (``tl.sum`` would move single numbers through shared memory: microseconds.)"""
    overall = tl.max(highest, axis=0)
    fade = tl.exp2(highest - overall[None, :])
    even, odd = tl.split(tl.reshape(tl.permute(attended * fade[:, :, None], (1, 2, 0)), (16, HEAD, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return ((first + second) + (third + fourth)) / tl.sum(total * fade, axis=0)[:, None]


@triton.jit
def _prefetch_part(
    keys_ptr, values_ptr, table, first, last, kv_head, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """Have a part brought into the L2 cache; what this step writes there does not matter."""
    position = tl.minimum(first + tl.arange(0, WARPS * SPLIT), last)
    block = tl.load(table + position // BLOCK).to(tl.int64)
    prefetch(keys_ptr + ((block * BLOCK + position % BLOCK) * KV_HEADS + kv_head) * HEAD)
    prefetch(values_ptr + ((block * KV_HEADS + kv_head) * HEAD + position % HEAD) * BLOCK)


@triton.jit
def _store_part(part_ptr, highest, total, attended, SHARE: tl.constexpr, HEAD: tl.constexpr):
    warp, share = tl.arange(0, WARPS)[:, None], tl.arange(0, 16)[None, :]
    at = part_ptr + (warp * SHARE + share) * (HEAD + 4)
    here = (share < SHARE) & (warp >= 0)
    tl.store(at + HEAD, highest, mask=here)
    tl.store(at + HEAD + 1, total, mask=here)
    tl.store(at[:, :, None] + tl.arange(0, HEAD)[None, None, :], attended, mask=here[:, :, None])


@triton.jit
def _load_part(part_ptr, SHARE: tl.constexpr, HEAD: tl.constexpr):
    warp, share = tl.arange(0, WARPS)[:, None], tl.arange(0, 16)[None, :]
    at = part_ptr + (warp * SHARE + share) * (HEAD + 4)
    here = (share < SHARE) & (warp >= 0)
    highest = tl.load(at + HEAD, mask=here, other=HIDDEN_SCORE)
    total = tl.load(at + HEAD + 1, mask=here, other=0.0)
    return highest, total, tl.load(at[:, :, None] + tl.arange(0, HEAD)[None, None, :], mask=here[:, :, None], other=0.0)


@triton.jit(do_not_specialize=["table_stride"])
def attend_rows(
    q_ptr, keys_ptr, values_ptr, fields_ptr, table_ptr, table_stride, part_ptr, arrived_ptr, attended_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    PROGRAMS: tl.constexpr, MOST_PARTS: tl.constexpr, SCALE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (KV_HEADS, rows, PROGRAMS). SHARE: query heads per key/value head, at most 16. SCALE: of scores, base 2.

    PROGRAMS: of a row, which take its parts in turns; the one that arrives last joins them. part_ptr: float32
    [rows, KV_HEADS, MOST_PARTS, WARPS, SHARE, HEAD + 4]; arrived_ptr: int32 [rows, KV_HEADS], zero. With one program they are not used.
    ``RowField.ORDER``: the row of each program, longest context first.
    """
    RUN: tl.constexpr = 8 if HEAD >= 32 else 4
    PART: tl.constexpr = WARPS * SPLIT
    if PDL:
        start_successor()
    kv_head = tl.program_id(0)
    row = tl.load(fields_ptr + tl.program_id(1) * FIELDS + ORDER)
    last = tl.load(fields_ptr + row * FIELDS + POSITION)
    table = table_ptr + tl.load(fields_ptr + row * FIELDS + SLOT) * table_stride
    parts = (last + PART) // PART
    first = tl.program_id(2) * PART
    if PDL:
        if first <= last:
            _prefetch_part(keys_ptr, values_ptr, table, first, last, kv_head, KV_HEADS, HEAD, BLOCK, SPLIT)
        wait_predecessor()
    if first <= last:
        start = first + tl.arange(0, WARPS) * SPLIT
        block = tl.load(table + start // BLOCK, mask=start <= last, other=0).to(tl.int64)
        q = _query(q_ptr, row, kv_head, HEADS, HEAD, SHARE, RUN)
        keys = _keys(keys_ptr, block * BLOCK + start % BLOCK, start <= last, kv_head, KV_HEADS, HEAD, SPLIT, RUN)
        highest = tl.full((WARPS, 16), HIDDEN_SCORE, tl.float32)
        total = tl.zeros((WARPS, 16), tl.float32)
        attended = tl.zeros((WARPS, 16, HEAD), tl.float32)
        part_ptr += (row * KV_HEADS + kv_head) * (MOST_PARTS * WARPS * SHARE * (HEAD + 4))
        SIZE: tl.constexpr = WARPS * SHARE * (HEAD + 4)
        for part in range(tl.program_id(2), parts, PROGRAMS):
            values = _values(values_ptr, block, start % BLOCK, start <= last, kv_head, KV_HEADS, HEAD, BLOCK, SPLIT)
            following = start + PROGRAMS * PART
            exists = following <= last
            block = tl.load(table + following // BLOCK, mask=exists, other=0).to(tl.int64)
            here = keys
            keys = _keys(keys_ptr, block * BLOCK + following % BLOCK, exists, kv_head, KV_HEADS, HEAD, SPLIT, RUN)
            part_highest, part_total, part_attended = _part(q, here, values, start, last, SPLIT, SCALE)
            if (PROGRAMS == 1) | (parts == 1):
                highest, total, attended = _join(highest, total, attended, part_highest, part_total, part_attended)
            else:
                _store_part(part_ptr + part * SIZE, part_highest, part_total, part_attended, SHARE, HEAD)
            start = following
        is_last = True
        if (PROGRAMS > 1) & (parts > 1):
            tl.debug_barrier()  # the program that arrives last sees what all have stored
            arrived = tl.atomic_add(arrived_ptr + row * KV_HEADS + kv_head, 1, sem="acq_rel")
            is_last = arrived == tl.minimum(parts, PROGRAMS) - 1
            if is_last:
                tl.debug_barrier()
                tl.store(arrived_ptr + row * KV_HEADS + kv_head, 0)
                part_highest, part_total, part_attended = _load_part(part_ptr, SHARE, HEAD)
                for part in range(0, parts):
                    here_highest, here_total, here_attended = part_highest, part_total, part_attended
                    next_ptr = part_ptr + tl.minimum(part + 1, parts - 1) * SIZE
                    part_highest, part_total, part_attended = _load_part(next_ptr, SHARE, HEAD)
                    highest, total, attended = _join(highest, total, attended, here_highest, here_total, here_attended)
        if is_last:
            share = tl.arange(0, 16)
            target = attended_ptr + (row * HEADS + kv_head * SHARE + share)[:, None] * HEAD + tl.arange(0, HEAD)[None, :]
            tl.store(target, fits(_merge_warps(highest, total, attended, HEAD), attended_ptr), mask=(share < SHARE)[:, None])
