# mypy: ignore-errors
"""Gate and up projection of the MLP: RMSNorm, both projections, silu(gate) * up.

``gate_up_small`` for at most 16 rows (``pieces_few``); ``gate_up_large`` for 17 to 64, in Triton: tiles loaded through tensor
descriptors in pipelined bulk copies, weights prefetched into the L2 cache before the wait for the predecessor; ``gate_up_many`` for
more (``pieces_many``). All three add in the same order.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from bistream.gpu.arithmetic import add_in_order, inverse_rms, packed_column
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.pieces_few import (
    FLAT,
    FLAT_5D,
    add_chunks,
    eight_products,
    left_operand,
    load_rows,
    stage_weights,
)
from bistream.text2token.cuda.pieces_many import GROUP, STEP, feed

PARTS = gl.constexpr(5)  # parts of 16 gate and 16 up features per program: 256 rows are 122 programs of 128 rows, one wave


@gluon.jit(do_not_specialize=["rows"])
def gate_up_small(
    xb_ptr, squares_ptr, w_ptr, hidden_ptr, rows,
    K: gl.constexpr, INTERMEDIATE: gl.constexpr, PAIRS: gl.constexpr, EPS: gl.constexpr, HALVES: gl.constexpr,
    MANY: gl.constexpr, PACKED: gl.constexpr, IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Tiles of gate and up alternate. Grid: cdiv(INTERMEDIATE / 8, PAIRS <= 8).

    MANY: more than 16 rows, 16 at a time. PACKED: store the result for ``down_small``.
    """
    start_successor()
    ROWS_OUT: gl.constexpr = 8 * HALVES
    layout: gl.constexpr = gl.BlockedLayout([1, 2, 8, 1, 1], [1, 1, 1, 4, 8], [4, 1, 1, 2, 1], [4, 3, 2, 1, 0])
    out: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, layout))
    first = gl.program_id(0) * PAIRS
    staged = gl.allocate_shared_memory(gl.bfloat16, [2 * PAIRS, 4, 8, 256], FLAT)
    stage_weights(staged, w_ptr, first * 2, INTERMEDIATE // 4 - 1, K, 2 * PAIRS, IN_FLIGHT)
    if MANY:
        exchange = gl.allocate_shared_memory(gl.float32, [8, 2, 8, ROWS_OUT, 8], FLAT_5D)
    else:
        exchange = staged._reinterpret(gl.float32, [8, 2, 8, ROWS_OUT, 8], FLAT_5D)
    row_0 = gl.arange(0, ROWS_OUT, layout=gl.SliceLayout(0, gl.SliceLayout(2, out)))[None, :, None]
    pair = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, out)))[:, None, None]
    feature = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, None, :]
    column = (first + pair) * 8 + feature
    inside = (pair < PAIRS) & (column < INTERMEDIATE)
    target = hidden_ptr + (packed_column(column) if PACKED else column)
    wait_predecessor()
    x = load_rows(xb_ptr, 0, rows, 0, K, 128, 4, HALVES)
    passes = (rows + 15) // 16 if MANY else 1
    for number in range(0, passes):
        base = number * 16
        row = gl.minimum(base + row_0, rows - 1)
        scale = inverse_rms(gl.load(squares_ptr + row), K, EPS)
        left = left_operand(x, 4, HALVES)
        if MANY:
            x = load_rows(xb_ptr, base + 16, rows, 0, K, 128, 4, HALVES)
        async_copy.wait_group(0)
        products = gl.join(eight_products(staged, 0, left, 2 * PAIRS, HALVES), eight_products(staged, 8, left, 2 * PAIRS, HALVES))
        gl.thread_barrier()
        exchange.store(products.permute((6, 5, 4, 3, 0, 1, 2)).reshape((8, 2, 8, ROWS_OUT, 8)))
        gl.thread_barrier()
        total = add_chunks(exchange.load(layout).permute((0, 3, 4, 1, 2)).reshape((8, ROWS_OUT, 8, 2, 2, 2, 2)))
        gate, up = gl.split(total)
        gate = gl.convert_layout(gate, out, assert_trivial=True) * scale
        up = gl.convert_layout(up, out, assert_trivial=True)
        gated = gate / (1.0 + gl.exp(-gate)) * (up * scale)
        gl.store(target + row * INTERMEDIATE, gated.to(gl.bfloat16), mask=inside & (base + row_0 < rows))


@triton.jit
def _prefetch(ptr, ROW_BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Prefetch THREADS * ROW_BYTES bytes at ptr into the L2 cache."""
    address = ptr.to(tl.int64) + tl.arange(0, THREADS).to(tl.int64) * ROW_BYTES
    tl.inline_asm_elementwise(
        f"cp.async.bulk.prefetch.L2.global [$1], {ROW_BYTES}; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _gate_and_up(total, TILE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Columns [PARTS, 2, WIDTH] of total [TILE, .] -> two of [TILE, PARTS * WIDTH]."""
    first, second = tl.split(tl.permute(tl.reshape(total, (TILE, PARTS, 2, WIDTH)), (0, 1, 3, 2)))
    return tl.reshape(first, (TILE, PARTS * WIDTH)), tl.reshape(second, (TILE, PARTS * WIDTH))


@triton.jit(do_not_specialize=["rows"])
def gate_up_large(
    xb_desc, squares_ptr, w_desc, w_ptr, hidden_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, INTERMEDIATE: tl.constexpr,
    EPS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Rows of the matrix: 16 of gate and 16 of up alternate.

    Grid: (INTERMEDIATE / FEATURES, rows / TILE).
    """
    start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    if tl.program_id(1) == 0:
        _prefetch(w_ptr + 2 * start * K, FEATURES * K * 4 // THREADS, THREADS)
    total = tl.zeros((TILE, 2 * FEATURES), tl.float32)
    wait_predecessor()
    sum_of_squares = tl.load(squares_ptr + row)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(xb_desc.load([first_row, k]), w_desc.load([2 * start, k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    gate, up = _gate_and_up(total, TILE, FEATURES // 16, 16)
    gate = gate * scale
    gated = gate / (1.0 + tl.exp(-gate)) * (up * scale)
    at = row[:, None] * INTERMEDIATE + start + tl.arange(0, FEATURES)[None, :]
    tl.store(hidden_ptr + at, gated.to(tl.bfloat16), mask=(row < rows)[:, None])


@gluon.jit
def _store_gated(total, first_row, start, scale, hidden_ptr, rows, COUNT: gl.constexpr, INTERMEDIATE: gl.constexpr):
    """silu(gate) * up of [64, COUNT * (16 gate, 16 up)]."""
    gate, up = gl.split(total.reshape((GROUP, COUNT, 2, 16)).permute((0, 1, 3, 2)))
    gate = gate.reshape((GROUP, COUNT * 16))
    up = up.reshape((GROUP, COUNT * 16))
    layout: gl.constexpr = gate.type.layout
    row = first_row + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    feature = start + gl.arange(0, COUNT * 16, layout=gl.SliceLayout(0, layout))
    scale = gl.convert_layout(scale, gl.SliceLayout(1, layout), assert_trivial=True)[:, None]
    gate = gate * scale
    gated = gate / (1.0 + gl.exp(-gate)) * (up * scale)
    at = row[:, None] * INTERMEDIATE + feature[None, :]
    gl.store(hidden_ptr + at, gated.to(gl.bfloat16), mask=(row < rows)[:, None] & (feature < INTERMEDIATE)[None, :])


@gluon.jit
def _gate_up_group(
    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
    group: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, K: gl.constexpr, INTERMEDIATE: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """64 rows, 64 + 16 features of gate and of up, because the shapes of tiles are powers of two."""
    wide: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    slim: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    total = gl.zeros([GROUP, 128], gl.float32, wide)
    more_total = gl.zeros([GROUP, 32], gl.float32, slim)
    first = first_row + group * GROUP
    wait_predecessor()
    scale = inverse_rms(gl.load(squares_ptr + first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, wide))), K, EPS)
    stage = 0
    phase = 0
    for _ in range(K // (2 * STEP)):  # a chunk of 128 columns
        part = gl.zeros([GROUP, 128], gl.float32, wide)
        more_part = gl.zeros([GROUP, 32], gl.float32, slim)
        for half in gl.static_range(2):
            mbarrier.wait(w_ready.index(stage + half), phase)
            mbarrier.wait(x_ready.index(stage + half), phase)
            x = x_tiles.index((stage + half) * GROUPS + group)
            part = warpgroup_mma(x, w_tiles.index(stage + half).permute((1, 0)), part, use_acc=half == 1, is_async=True)
            more_part = warpgroup_mma(x, more_tiles.index(stage + half).permute((1, 0)), more_part, use_acc=half == 1, is_async=True)
        part, more_part = warpgroup_mma_wait(0, deps=(part, more_part))
        gl.thread_barrier()
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty.index(stage + 1), count=1)
        total = add_in_order(total, part)
        more_total = add_in_order(more_total, more_part)
        phase = gl.where(stage == STAGES - 2, phase ^ 1, phase)
        stage = gl.where(stage == STAGES - 2, 0, stage + 2)
    _store_gated(total, first, start, scale, hidden_ptr, rows, PARTS - 1, INTERMEDIATE)
    _store_gated(more_total, first, start + 16 * (PARTS - 1), scale, hidden_ptr, rows, 1, INTERMEDIATE)


@gluon.jit(do_not_specialize=["rows"])
def gate_up_many(
    x_desc, w_desc, more_desc, squares_ptr, hidden_ptr, next_ptr, rows,
    NEXT_BYTES: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, K: gl.constexpr, INTERMEDIATE: gl.constexpr,
    EPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Rows of the matrix: 16 of gate and 16 of up alternate. STAGES is even.

    Grid: (cdiv(INTERMEDIATE, 80), rows / 64 / GROUPS).
    """
    start_successor()
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, GROUP, STEP], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, STEP], w_desc.layout)
    more_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 32, STEP], more_desc.layout)
    x_ready = barriers(STAGES, 1)
    w_ready = barriers(STAGES, 1)
    empty = barriers(STAGES, GROUPS)
    start = gl.program_id(0) * (16 * PARTS)
    first_row = gl.program_id(1) * (GROUPS * GROUP)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    0, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    1, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (feed, (
                    x_desc, w_desc, more_desc, x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, 2 * start, 0, next_ptr,
                    K // STEP, STAGES, STAGES, GROUPS, True, NEXT_BYTES, False,
                )),
            ],
            [4, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    0, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (feed, (
                    x_desc, w_desc, more_desc, x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, 2 * start, 0, next_ptr,
                    K // STEP, STAGES, STAGES, GROUPS, True, NEXT_BYTES, False,
                )),
            ],
            [1],
            [24],
        )  # fmt: skip
