# mypy: ignore-errors
"""Linear layers of the encoder: with LayerNorm and activation, and onto the residual stream. Weights are [out, in] as in the file."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import layer_norm, silu
from bistream.gpu.dependent_launch import begin


@triton.jit
def norm_linear(
    x_ptr, gamma_ptr, beta_ptr, w_ptr, bias_ptr, live_ptr, out_ptr, out_stride,
    rows, WIDTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, EPS: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """activation(LayerNorm(x) W^T + b), x float32 [rows, WIDTH]. Grid: (row tiles, out / FEATURES)."""
    first = tl.program_id(0) * TILE
    if first % rows >= tl.load(live_ptr):
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
    x_ptr, gamma_ptr, beta_ptr, live_ptr, out_ptr, rows, WIDTH: tl.constexpr, TILE: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """LayerNorm of x float32 [rows, WIDTH] in 16 bit. Grid: (row tiles,)."""
    first = tl.program_id(0) * TILE
    if first % rows >= tl.load(live_ptr):
        return
    begin(PDL)
    column = tl.arange(0, WIDTH)
    at = (first + tl.arange(0, TILE))[:, None] * WIDTH + column[None, :]
    out = layer_norm(tl.load(x_ptr + at), tl.load(gamma_ptr + column), tl.load(beta_ptr + column), WIDTH, EPS)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty))


@triton.jit
def linear(
    a_ptr, w_ptr, bias_ptr, live_ptr, out_ptr, out_stride,
    rows, DEPTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """activation(a W^T + b), a 16 bit [rows, DEPTH]. Grid: (out / FEATURES, row tiles)."""
    first = tl.program_id(1) * TILE
    if first % rows >= tl.load(live_ptr):
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    inner = tl.arange(0, STEP)
    total = tl.zeros([TILE, FEATURES], tl.float32)
    for start in tl.range(0, DEPTH, STEP, num_stages=STAGES):
        a = tl.load(a_ptr + row[:, None] * DEPTH + (start + inner)[None, :])
        w = tl.load(w_ptr + feature[None, :] * DEPTH + (start + inner)[:, None])
        total = tl.dot(a, w, total)
    total += tl.load(bias_ptr + feature).to(tl.float32)[None, :]
    if ACTIVATION == "silu":
        total = silu(total)
    tl.store(out_ptr + row[:, None] * out_stride + feature[None, :], total.to(out_ptr.dtype.element_ty))


@triton.jit
def residual_linear(
    a_ptr, w_ptr, bias_ptr, live_ptr, x_ptr, last_ptr, last_stride,
    rows, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, IS_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x += a W^T + b with a 16 bit [rows, DEPTH], x float32 [rows, WIDTH]. Grid: (row tiles, WIDTH / FEATURES).

    IS_LAST, at the end of a residual stream: x is unchanged, the sum goes to ``last`` in 16 bit (rows ``last_stride`` apart).
    """
    first = tl.program_id(0) * TILE
    if first % rows >= tl.load(live_ptr):
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    inner = tl.arange(0, STEP)
    total = tl.zeros([TILE, FEATURES], tl.float32)
    for start in tl.range(0, DEPTH, STEP, num_stages=STAGES):
        a = tl.load(a_ptr + row[:, None] * DEPTH + (start + inner)[None, :])
        w = tl.load(w_ptr + feature[None, :] * DEPTH + (start + inner)[:, None])
        total = tl.dot(a, w, total)
    at = x_ptr + row[:, None] * WIDTH + feature[None, :]
    total += tl.load(bias_ptr + feature).to(tl.float32)[None, :] + tl.load(at)
    if IS_LAST:
        tl.store(last_ptr + row[:, None] * last_stride + feature[None, :], total.to(last_ptr.dtype.element_ty))
    else:
        tl.store(at, total)
