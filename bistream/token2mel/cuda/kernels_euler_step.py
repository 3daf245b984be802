# mypy: ignore-errors
"""The end of an evaluation of the estimator: velocities, guidance, Euler step."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import layer_norm, mish


@triton.jit
def finish_step(
    raw_ptr, gamma_ptr, beta_ptr, w_ptr, bias_ptr, live_ptr, state_ptr, inputs_ptr, free_ptr, free_row_ptr, step_size, guidance,
    rows, WIDTH: tl.constexpr, BINS: tl.constexpr, FEATURES: tl.constexpr, INPUTS: tl.constexpr, TILE: tl.constexpr,
    KNOWN: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The end of an evaluation: velocities of both halves, guidance, Euler step. Grid: (rows / TILE,).

    state: float32 [rows, BINS], the mel; its 16-bit copy becomes columns 0 ... BINS - 1 of ``inputs`` [2 rows, INPUTS].
    KNOWN: the second half was not computed; its velocities are rows ``free_row`` of ``free``, float32 [.., BINS].
    """
    first = tl.program_id(0) * TILE
    if first >= tl.load(live_ptr):
        return
    row = first + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    feature = tl.arange(0, FEATURES)
    is_bin = feature < BINS
    gamma = tl.load(gamma_ptr + column)
    beta = tl.load(beta_ptr + column)
    w = tl.load(w_ptr + feature[None, :] * WIDTH + column[:, None], mask=is_bin[None, :], other=0.0)
    bias = tl.load(bias_ptr + feature, mask=is_bin, other=0.0).to(tl.float32)[None, :]
    raw = tl.load(raw_ptr + row[:, None] * WIDTH + column[None, :]).to(tl.float32)
    guided = tl.dot(mish(layer_norm(raw, gamma, beta, WIDTH, EPS)).to(w.dtype), w) + bias
    if KNOWN:
        line = tl.load(free_row_ptr + row).to(tl.int64) * BINS
        free = tl.load(free_ptr + line[:, None] + feature[None, :], mask=is_bin[None, :], other=0.0)
    else:
        raw = tl.load(raw_ptr + (rows + row)[:, None] * WIDTH + column[None, :]).to(tl.float32)
        free = tl.dot(mish(layer_norm(raw, gamma, beta, WIDTH, EPS)).to(w.dtype), w) + bias
    at = state_ptr + row[:, None] * BINS + feature[None, :]
    state = tl.load(at, mask=is_bin[None, :], other=0.0) + step_size * ((1.0 + guidance) * guided - guidance * free)
    tl.store(at, state, mask=is_bin[None, :])
    copy = state.to(inputs_ptr.dtype.element_ty)
    tl.store(inputs_ptr + row[:, None] * INPUTS + feature[None, :], copy, mask=is_bin[None, :])
    tl.store(inputs_ptr + (rows + row)[:, None] * INPUTS + feature[None, :], copy, mask=is_bin[None, :])
