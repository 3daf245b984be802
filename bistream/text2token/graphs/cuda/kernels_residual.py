# mypy: ignore-errors
"""A projection added to the residual stream: attention's output projection, and the MLP's down projection.

With many rows and a long K the chunks are computed by programs of their own (``multiply_chunk``) and added by ``add_chunks``.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import add_in_order
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.cuda.pieces_linear import (
    CHUNKS,
    FEW,
    few_right,
    few_rows,
    few_weights,
    many_product,
    one_chunk,
    store_residual,
    sum_of_chunks,
)

AT_ONCE = tl.constexpr(8)  # groups of 16 columns of a chunk that are loaded together


@triton.jit
def _few_sum(
    in_ptr, w_ptr, start, first_row, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """[16, FEATURES]; all weights are on their way before the wait."""
    ALL: tl.constexpr = CHUNK // 16
    weights = ()
    for first in tl.static_range(0, ALL, AT_ONCE):
        weights = weights + (few_weights(w_ptr, start, first, K, CHUNK, FEATURES, AT_ONCE),)
    if PDL:
        wait_predecessor()
    parts = tl.zeros((CHUNKS, FEW, FEATURES), tl.float32)
    for number in tl.static_range(0, ALL // AT_ONCE):
        x = few_rows(in_ptr, first_row, rows, number * AT_ONCE, K, CHUNK, AT_ONCE)
        parts = tl.dot(x, few_right(weights[number], FEATURES, AT_ONCE), parts)
    return sum_of_chunks(parts, FEATURES)


@triton.jit(do_not_specialize=["rows"])
def add_product(
    in_ptr, w_ptr, x_ptr, xb_ptr, squares_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, HIDDEN: tl.constexpr, SHRINK: tl.constexpr, IS_FEW: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (HIDDEN / FEATURES, rows / ROWS). in_ptr: [rows, K]; weights [HIDDEN, K]."""
    if PDL:
        start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * ROWS
    row = first_row + tl.arange(0, ROWS)
    feature = start + tl.arange(0, FEATURES)
    if IS_FEW:
        total = _few_sum(in_ptr, w_ptr, start, first_row, rows, K, CHUNK, FEATURES, PDL)
    else:
        if PDL:
            wait_predecessor()
        total = many_product(in_ptr, w_ptr, first_row, start, K, CHUNK, ROWS, FEATURES, STEP, STAGES)
    x = tl.load(x_ptr + row[:, None] * HIDDEN + feature[None, :], mask=(row < rows)[:, None], other=0.0)
    store_residual(x + total, row, feature, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN, SHRINK)


@triton.jit(do_not_specialize=["rows"])
def multiply_chunk(
    in_ptr, w_ptr, part_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, HIDDEN: tl.constexpr, MAX_ROWS: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (HIDDEN / FEATURES, rows / ROWS, chunks). part_ptr: float32 [chunks, MAX_ROWS, HIDDEN]."""
    if PDL:
        start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * ROWS
    first = tl.program_id(2) * CHUNK
    if PDL:
        wait_predecessor()
    part = one_chunk(in_ptr, w_ptr, first_row, start, first, tl.minimum(first + CHUNK, K), K, ROWS, FEATURES, STEP, STAGES)
    row = first_row + tl.arange(0, ROWS)
    at = (tl.program_id(2) * MAX_ROWS + row)[:, None] * HIDDEN + (start + tl.arange(0, FEATURES))[None, :]
    tl.store(part_ptr + at, part, mask=(row < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def add_chunks(
    part_ptr, x_ptr, xb_ptr, squares_ptr, rows,
    PARTS: tl.constexpr, HIDDEN: tl.constexpr, MAX_ROWS: tl.constexpr, SHRINK: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The sums of ``multiply_chunk``, in ascending order, and the residual stream. Grid: (HIDDEN / FEATURES, rows / ROWS)."""
    if PDL:
        start_successor()
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    at = row[:, None] * HIDDEN + feature[None, :]
    is_row = (row < rows)[:, None]
    if PDL:
        wait_predecessor()
    x = tl.load(x_ptr + at, mask=is_row, other=0.0)
    total = tl.load(part_ptr + at, mask=is_row, other=0.0)
    for chunk in tl.static_range(1, PARTS):
        total = add_in_order(total, tl.load(part_ptr + chunk * (MAX_ROWS * HIDDEN) + at, mask=is_row, other=0.0))
    store_residual(x + total, row, feature, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN, SHRINK)
