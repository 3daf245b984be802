# mypy: ignore-errors
"""Pieces of the kernels for many rows: products with weights, and where a LayerNorm goes."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import layer_norm
from bistream.token2mel.cuda.pieces_state import scaled_rows


@triton.jit
def product(a_ptr, a_stride, w_ptr, row, feature, DEPTH: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    """a W^T of 16-bit rows and features, float32 [rows, features]. a: rows ``a_stride`` apart; w: [features, DEPTH]."""
    inner = tl.arange(0, STEP)
    total = tl.zeros([row.shape[0], feature.shape[0]], tl.float32)
    for start in tl.range(0, DEPTH, STEP, num_stages=STAGES):
        a = tl.load(a_ptr + row[:, None] * a_stride + (start + inner)[None, :])
        w = tl.load(w_ptr + feature[None, :] * DEPTH + (start + inner)[:, None])
        total = tl.dot(a, w, total)
    return total


@triton.jit
def store_norm(
    x, row, column, live, gamma_ptr, beta_ptr, copy_ptr, copy_stride, keep_ptr, page_ptr, scales_ptr,
    WIDTH: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """LayerNorm of x [rows, WIDTH] in 16 bit to ``copy`` and to the pages of kept chunks.

    keep: row of the page memory, or -1, of each of the ``live`` rows; None: no row is kept. page, scales: ``StateRows``.
    """
    normed = layer_norm(x, tl.load(gamma_ptr + column), tl.load(beta_ptr + column), WIDTH, EPS).to(copy_ptr.dtype.element_ty)
    tl.store(copy_ptr + row[:, None] * copy_stride + column[None, :], normed)
    if keep_ptr is not None:
        keep = tl.load(keep_ptr + row, mask=row < live, other=-1)
        kept, scale = scaled_rows(normed)
        tl.store(page_ptr + keep.to(tl.int64)[:, None] * WIDTH + column[None, :], kept, mask=(keep >= 0)[:, None])
        tl.store(scales_ptr + keep, scale, mask=keep >= 0)
