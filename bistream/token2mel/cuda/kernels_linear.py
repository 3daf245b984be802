# mypy: ignore-errors
"""Linear layers: with LayerNorm or activation, and onto the residual stream. Weights are [out, in] as in the file.

The encoder uses all of them, the estimator ``linear`` for many rows.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import gelu, layer_norm, silu
from bistream.gpu.dependent_launch import begin
from bistream.token2mel.cuda.pieces_many import product


@triton.jit
def norm_linear(
    x_ptr, gamma_ptr, beta_ptr, w_ptr, bias_ptr, live_ptr, out_ptr, out_stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, EPS: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """activation(LayerNorm(x) W^T + b), x float32 [rows, WIDTH]. Grid: (row tiles, out / FEATURES)."""
    first = tl.program_id(0) * TILE
    if first >= tl.load(live_ptr):
        return
    column = tl.arange(0, WIDTH)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    w = tl.load(w_ptr + feature[None, :] * WIDTH + column[:, None])
    bias = tl.load(bias_ptr + feature).to(tl.float32)
    gamma = tl.load(gamma_ptr + column)
    beta = tl.load(beta_ptr + column)
    begin(PDL)
    row = first + tl.arange(0, TILE)
    x = tl.load(x_ptr + row[:, None] * WIDTH + column[None, :])
    out = tl.dot(layer_norm(x, gamma, beta, WIDTH, EPS).to(w.dtype), w) + bias[None, :]
    if ACTIVATION == "silu":
        out = silu(out)
    tl.store(out_ptr + row[:, None] * out_stride + feature[None, :], out.to(w.dtype))


@triton.jit
def norm_rows(
    x_ptr, gamma_ptr, beta_ptr, live_ptr, out_ptr, WIDTH: tl.constexpr, TILE: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """LayerNorm of x float32 [rows, WIDTH] in 16 bit. Grid: (row tiles,)."""
    first = tl.program_id(0) * TILE
    if first >= tl.load(live_ptr):
        return
    begin(PDL)
    column = tl.arange(0, WIDTH)
    at = (first + tl.arange(0, TILE))[:, None] * WIDTH + column[None, :]
    out = layer_norm(tl.load(x_ptr + at), tl.load(gamma_ptr + column), tl.load(beta_ptr + column), WIDTH, EPS)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty))


@triton.jit
def linear(
    a_ptr, a_stride, a_step, w_ptr, bias_ptr, live_ptr, out_ptr, out_stride,
    DEPTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """activation(a W^T + b), a 16 bit [rows, DEPTH], rows ``a_stride`` apart. Grid: (out / FEATURES, row tiles).

    a_step: columns between the inputs of two tiles of features; 0: all features have the same input. bias: None for none.
    """
    first = tl.program_id(1) * TILE
    if first >= tl.load(live_ptr):
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    total = product(a_ptr + tl.program_id(0) * a_step, a_stride, w_ptr, row, feature, DEPTH, STEP, STAGES)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + feature).to(tl.float32)[None, :]
    if ACTIVATION == "silu":
        total = silu(total)
    if ACTIVATION == "gelu":
        total = gelu(total)
    tl.store(out_ptr + row[:, None] * out_stride + feature[None, :], total.to(out_ptr.dtype.element_ty))


@triton.jit
def residual_linear(
    a_ptr, w_ptr, bias_ptr, live_ptr, x_ptr, last_ptr, last_stride,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, IS_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x += a W^T + b with a 16 bit [rows, DEPTH], x float32 [rows, WIDTH]. Grid: (row tiles, WIDTH / FEATURES).

    IS_LAST, at the end of a residual stream: x is unchanged, the sum goes to ``last`` in 16 bit (rows ``last_stride`` apart).
    """
    first = tl.program_id(0) * TILE
    if first >= tl.load(live_ptr):
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    total = product(a_ptr, DEPTH, w_ptr, row, feature, DEPTH, STEP, STAGES)
    at = x_ptr + row[:, None] * WIDTH + feature[None, :]
    total += tl.load(bias_ptr + feature).to(tl.float32)[None, :] + tl.load(at)
    if IS_LAST:
        tl.store(last_ptr + row[:, None] * last_stride + feature[None, :], total.to(last_ptr.dtype.element_ty))
    else:
        tl.store(at, total)
