# mypy: ignore-errors
"""Between two attentions of the estimator, for many rows: the residual stream with its LayerNorm, and the next block's query.

A block runs ``kernels_linear.linear`` (values of all heads), ``add_rows``, ``linear`` (the feed-forward's hidden features), ``add_rows``
and ``fold_query``. One kernel for all of them would read every weight once per row tile too, on fewer multiprocessors.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import begin
from bistream.token2mel.cuda.pieces_many import product, store_norm


@triton.jit
def add_rows(
    a_ptr, w_ptr, bias_ptr, live_ptr, x_ptr, gamma_ptr, beta_ptr, copy_ptr, copy_stride, keep_ptr, page_ptr, scales_ptr,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, EPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x += a W^T + b with a 16 bit [rows, DEPTH], x float32 [rows, WIDTH]; LayerNorm(x) to ``copy`` in 16 bit. Grid: (row tiles,).

    copy: rows ``copy_stride`` apart. keep, page, scales: see ``store_norm``. gamma, beta: None at the end of a residual stream, where x is
    unchanged and the sum itself goes to ``copy``.
    """
    first = tl.program_id(0) * TILE
    live = tl.load(live_ptr)
    if first >= live:
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    at = x_ptr + row[:, None] * WIDTH + column[None, :]
    x = tl.load(at)  # early: it arrives while the product is computed
    total = product(a_ptr, DEPTH, w_ptr, row, column, DEPTH, STEP, STAGES)
    total += tl.load(bias_ptr + column).to(tl.float32)[None, :] + x
    if gamma_ptr is None:
        tl.store(copy_ptr + row[:, None] * copy_stride + column[None, :], total.to(copy_ptr.dtype.element_ty))
    else:
        tl.store(at, total)
        store_norm(total, row, column, live, gamma_ptr, beta_ptr, copy_ptr, copy_stride, keep_ptr, page_ptr, scales_ptr, WIDTH, EPS)


@triton.jit
def fold_query(
    normed_ptr, query_w_ptr, key_w_ptr, live_ptr, out_ptr,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Queries folded with the keys' weights, 16 bit [rows, HEADS, WIDTH], of normalised rows [rows, WIDTH]. Grid: (row tiles, HEADS).

    query_w, key_w: [HEADS * HEAD, WIDTH].
    """
    first = tl.program_id(0) * TILE
    if first >= tl.load(live_ptr):
        return
    head = tl.program_id(1)
    feature = head * HEAD + tl.arange(0, HEAD)
    column = tl.arange(0, WIDTH)
    begin(PDL)
    row = first + tl.arange(0, TILE)
    query = product(normed_ptr, WIDTH, query_w_ptr, row, feature, WIDTH, STEP, STAGES)
    key_w = tl.load(key_w_ptr + feature[:, None] * WIDTH + column[None, :])
    folded = tl.dot(query.to(key_w.dtype), key_w)
    out = out_ptr + (row * HEADS + head)[:, None] * WIDTH + column[None, :]
    tl.store(out, folded.to(out_ptr.dtype.element_ty))
