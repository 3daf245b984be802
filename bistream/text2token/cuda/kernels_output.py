# mypy: ignore-errors
"""Output projection of attention, added to the residual stream, in Gluon: ``output_small`` for few rows, ``output_many`` for many."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from bistream.gpu.arithmetic import squares
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.pieces_few import (
    MMA,
    left_operand,
    load_residual,
    load_rows,
    load_weights,
    right_operand,
    store_residual,
    sum_eight,
    sum_eight_pairs,
)
from bistream.text2token.cuda.pieces_many import GROUP, STEP, feed, sum_of_chunks


@gluon.jit(do_not_specialize=["rows"])
def output_small(
    attended_ptr, w_ptr, x_ptr, xb_ptr, squares_ptr, rows,
    K: gl.constexpr, HALVES: gl.constexpr, TILES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Output projection and residual. Grid: (K / 8 / TILES, rows / 16), TILES 1 or 2."""
    start_successor()
    tile = gl.program_id(0) * TILES
    base = gl.program_id(1) * 16
    w_0 = load_weights(w_ptr, tile, 0, K, 4, 4)
    if TILES == 2:
        w_1 = load_weights(w_ptr, tile + 1, 0, K, 4, 4)
    wait_predecessor()
    left = load_rows(attended_ptr, base, rows, 0, K, 128, 4, HALVES)
    x_0 = load_residual(tile, base, rows, x_ptr, K)
    zero = gl.zeros([8, 16, 8], gl.float32, MMA)
    if TILES == 2:
        x_1 = load_residual(tile + 1, base, rows, x_ptr, K)
        left = left_operand(left, 4, HALVES)
        total_0, total_1 = sum_eight_pairs(mma_v2(left, right_operand(w_0, 4), zero), mma_v2(left, right_operand(w_1, 4), zero))
        store_residual(x_0 + total_0, tile, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)
        store_residual(x_1 + total_1, tile + 1, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)
    else:
        total_0 = sum_eight(mma_v2(left_operand(left, 4, HALVES), right_operand(w_0, 4), zero))
        store_residual(x_0 + total_0, tile, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)


@gluon.jit
def _output_group(
    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES: gl.constexpr, K: gl.constexpr
):
    FEATURES: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FEATURES, 16])
    row = first_row + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    is_row = (row < rows)[:, None]
    at = row[:, None] * K + start + gl.arange(0, FEATURES, layout=gl.SliceLayout(0, layout))[None, :]
    wait_predecessor()
    x = gl.load(x_ptr + at, mask=is_row, other=0.0)
    x += sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES, K)
    gl.store(x_ptr + at, x, mask=is_row)
    gl.store(xb_ptr + at, x.to(gl.bfloat16), mask=is_row)
    gl.atomic_add(squares_ptr + row, gl.sum(squares(x), axis=1), mask=row < rows, sem="relaxed")


@gluon.jit(do_not_specialize=["rows"])
def output_many(attended_desc, w_desc, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES: gl.constexpr, K: gl.constexpr):
    """Output projection and residual. Grid: (K / FEATURES, rows / 64)."""
    start_successor()
    FEATURES: gl.constexpr = w_desc.block_type.shape[0]
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [X_STAGES, GROUP, STEP], attended_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [K // STEP, FEATURES, STEP], w_desc.layout)
    x_ready = barriers(X_STAGES, 1)
    w_ready = barriers(K // STEP, 1)
    empty = barriers(X_STAGES, 1)
    start = gl.program_id(0) * FEATURES
    first_row = gl.program_id(1) * GROUP
    gl.warp_specialize(
        [
            (_output_group, (x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES, K)),
            (feed, (
                attended_desc, w_desc, w_desc, x_tiles, w_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, 0, x_ptr,
                K // STEP, X_STAGES, K // STEP, 1, False, 0, False,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip
