"""Linear layers for many rows (from 17): tiles of rows and features, pipelined bulk copies, the same sums as ``kernels_small``.

Matrices come as tensor descriptors. Weights are sent to the L2 cache before the wait for the predecessor.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bistream.text2token.cuda.kernels_common import BLOCK, add_in_order, finite, inverse_rms, packed_column, squares


@triton.jit
def _prefetch(ptr, ROW_BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Send THREADS * ROW_BYTES bytes from ptr to the L2 cache, without waiting."""
    address = ptr.to(tl.int64) + tl.arange(0, THREADS).to(tl.int64) * ROW_BYTES
    tl.inline_asm_elementwise(
        f"cp.async.bulk.prefetch.L2.global [$1], {ROW_BYTES}; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _halves(total, TILE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Columns [PARTS, 2, WIDTH] of total [TILE, .] -> two of [TILE, PARTS * WIDTH]."""
    first, second = tl.split(tl.permute(tl.reshape(total, (TILE, PARTS, 2, WIDTH)), (0, 1, 3, 2)))
    return tl.reshape(first, (TILE, PARTS * WIDTH)), tl.reshape(second, (TILE, PARTS * WIDTH))


@triton.jit(do_not_specialize=["rows"])
def qkv_large(
    x_desc, squares_ptr, w_desc, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position, table_ptr, table_stride,
    q_ptr, cache_ptr, rows,
    TILE: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    EPS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """RMSNorm, query/key/value projection, bias, rotation; keys and values go to the cache. Grid: (heads * 32 / HALF, rows / TILE).

    Rows of the matrix: 16 features of a head, then the 16 that are 32 behind them and rotate with them, and so on.
    FIRST: the first layer; the rows' slots and positions are written by the predecessor.
    """
    if FIRST:
        gdc_wait()
    gdc_launch_dependents()
    head = tl.program_id(0) // (32 // HALF)
    half = (tl.program_id(0) % (32 // HALF)) * HALF + tl.arange(0, HALF)
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    bias_first = tl.load(bias_ptr + head * 64 + half)
    bias_second = tl.load(bias_ptr + head * 64 + 32 + half)
    position = tl.load(row_position + row)
    live = (row < rows) & (position >= 0)
    at = tl.maximum(position, 0)
    block = tl.load(table_ptr + tl.load(row_slot + row) * table_stride + at // BLOCK, mask=live, other=0).to(tl.int64)
    angle = at[:, None] * 32 + half[None, :]
    cos = tl.load(cos_ptr + angle)
    sin = tl.load(sin_ptr + angle)
    if not FIRST:
        gdc_wait()
    sum_of_squares = tl.load(squares_ptr + row)
    total = tl.zeros((TILE, 2 * HALF), tl.float32)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(x_desc.load([first_row, k]), w_desc.load([tl.program_id(0) * (2 * HALF), k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    first, second = _halves(total, TILE, HALF // 16, 16)
    first = tl.fma(first, tl.broadcast_to(scale, first.shape), tl.broadcast_to(bias_first[None, :], first.shape))
    second = tl.fma(second, tl.broadcast_to(scale, second.shape), tl.broadcast_to(bias_second[None, :], second.shape))
    if head < HEADS + KV_HEADS:
        turned = tl.fma(first, cos, -(second * sin))
        second = tl.fma(second, cos, first * sin)
        first = turned
    packed = packed_column(half)[None, :]
    if head < HEADS:
        target = q_ptr + row[:, None] * (HEADS * 64) + head * 64 + packed
        tl.store(target, first.to(tl.bfloat16), mask=live[:, None])
        tl.store(target + 32, second.to(tl.bfloat16), mask=live[:, None])
    else:
        first_bits = finite(first).to(tl.bfloat16)
        second_bits = finite(second).to(tl.bfloat16)
        place = (at % BLOCK)[:, None]
        if head < HEADS + KV_HEADS:
            target = cache_ptr + (block * KV_HEADS + head - HEADS)[:, None] * (128 * BLOCK) + (place // 8) * 512 + (place % 8) * 32 + packed
            tl.store(target, first_bits, mask=live[:, None])
            tl.store(target + 256, second_bits, mask=live[:, None])
        else:
            target = cache_ptr + (block * KV_HEADS + head - HEADS - KV_HEADS)[:, None] * (128 * BLOCK) + 64 * BLOCK
            target += (half // 8 * 512 + half % 8 * 32)[None, :] + (place // 32) * 256 + packed_column(place % 32)
            tl.store(target, first_bits, mask=live[:, None])
            tl.store(target + 4 * 512, second_bits, mask=live[:, None])


@triton.jit(do_not_specialize=["rows"])
def output_large(
    attended_desc, w_desc, x_ptr, xb_ptr, squares_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Output projection and residual. PACKED: for ``kernels_small``. Grid: (K / FEATURES, rows / TILE)."""
    gdc_launch_dependents()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    is_row = row < rows
    feature = start + tl.arange(0, FEATURES)[None, :]
    at = row[:, None] * K + feature
    total = tl.zeros((TILE, FEATURES), tl.float32)
    gdc_wait()
    x = tl.load(x_ptr + at, mask=is_row[:, None], other=0.0)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(attended_desc.load([first_row, k]), w_desc.load([start, k]).T))
    x += total
    tl.store(x_ptr + at, x, mask=is_row[:, None])
    target = xb_ptr + row[:, None] * K + (packed_column(feature) if PACKED else feature)
    tl.store(target, x.to(tl.bfloat16), mask=is_row[:, None])
    tl.atomic_add(squares_ptr + row, tl.sum(squares(x), axis=1), mask=is_row, sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def gate_up_large(
    xb_desc, squares_ptr, w_desc, w_ptr, hidden_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, INTERMEDIATE: tl.constexpr,
    EPS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Rows of the matrix: 32 of gate, 32 of up, and so on.

    Grid: (INTERMEDIATE / FEATURES, rows / TILE).
    """
    gdc_launch_dependents()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    if tl.program_id(1) == 0:
        _prefetch(w_ptr + 2 * start * K, FEATURES * K * 4 // THREADS, THREADS)
    total = tl.zeros((TILE, 2 * FEATURES), tl.float32)
    gdc_wait()
    sum_of_squares = tl.load(squares_ptr + row)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(xb_desc.load([first_row, k]), w_desc.load([2 * start, k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    gate, up = _halves(total, TILE, FEATURES // 32, 32)
    gate = gate * scale
    gated = gate / (1.0 + tl.exp(-gate)) * (up * scale)
    at = row[:, None] * INTERMEDIATE + start + tl.arange(0, FEATURES)[None, :]
    tl.store(hidden_ptr + at, gated.to(tl.bfloat16), mask=(row < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def down_large(
    hidden_desc, w_desc, part_ptr, rows,
    MAX_ROWS: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, HIDDEN: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One chunk of 640 columns of the down projection. Grid: (HIDDEN / FEATURES, rows / TILE, 8)."""
    gdc_launch_dependents()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    chunk = tl.program_id(2)
    total = tl.zeros((TILE, FEATURES), tl.float32)
    gdc_wait()
    for k in tl.range(chunk * 640, tl.minimum(chunk * 640 + 640, K), 128, num_stages=STAGES):
        total = tl.dot(hidden_desc.load([first_row, k]), w_desc.load([start, k]).T, total)
    row = first_row + tl.arange(0, TILE)
    at = (chunk * MAX_ROWS + row)[:, None] * HIDDEN + start + tl.arange(0, FEATURES)[None, :]
    tl.store(part_ptr + at, total, mask=(row < rows)[:, None])


@triton.jit
def down_sum(
    part_ptr, x_ptr, xb_ptr, squares_ptr,
    MAX_ROWS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Chunks of the down projection in order, residual. PACKED: for ``kernels_small``. Grid: rows."""
    gdc_launch_dependents()
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    gdc_wait()
    x = tl.load(x_ptr + row * HIDDEN + column, mask=inside, other=0.0)
    parts = ()
    for chunk in tl.static_range(8):
        parts = parts + (tl.load(part_ptr + (chunk * MAX_ROWS + row) * HIDDEN + column, mask=inside, other=0.0),)
    tl.debug_barrier()  # all loads at once: the compiler would load one after the other to save registers
    total = parts[0]
    for chunk in tl.static_range(1, 8):
        total = add_in_order(total, parts[chunk])
    x += total
    tl.store(x_ptr + row * HIDDEN + column, x, mask=inside)
    target = xb_ptr + row * HIDDEN + (packed_column(column) if PACKED else column)
    tl.store(target, x.to(tl.bfloat16), mask=inside)
    tl.store(squares_ptr + row, tl.sum(tl.where(inside, squares(x), 0)))


@triton.jit(do_not_specialize=["rows"])
def head_large(
    xb_desc, squares_ptr, w_desc, bias_ptr, logits_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, VOCAB: tl.constexpr,
    VOCAB_STRIDE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Final RMSNorm and speech head: float32 scores. Grid: (cdiv(VOCAB, FEATURES), rows / TILE)."""
    gdc_launch_dependents()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    features = start + tl.arange(0, FEATURES)
    inside = features < VOCAB
    bias = tl.load(bias_ptr + features, mask=inside, other=0.0)
    total = tl.zeros((TILE, FEATURES), tl.float32)
    gdc_wait()
    sum_of_squares = tl.load(squares_ptr + row)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(xb_desc.load([first_row, k]), w_desc.load([start, k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    score = tl.fma(total, tl.broadcast_to(scale, total.shape), tl.broadcast_to(bias[None, :], total.shape))
    tl.store(logits_ptr + row[:, None] * VOCAB_STRIDE + features[None, :], score, mask=(row < rows)[:, None] & inside[None, :])
