# mypy: ignore-errors
"""Causal convolutions of kernel 3 on packed rows, their state at chunk ends, and the operations around them in the estimator.

``window_linear`` serves the encoder's upsampling, too, for any number of rows.

A row's two predecessors are the rows before it in the packed order; where the session's new part begins they come from the
tail of the session's last stored chunk. ``TAIL``: [halves, pages, 2, TAIL_WIDTH], all convolutions of a step side by side,
this one's input from column ``tail_column`` on.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import layer_norm, mish
from bistream.gpu.dependent_launch import begin
from bistream.token2mel.cuda.pieces_many import product, store_norm


@triton.jit
def _window(
    x_ptr, x_stride, w_ptr, bias_ptr, live, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column, first, feature, keeps,
    CHANNELS: tl.constexpr, TAIL_WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Convolution plus bias, float32 [TILE, features], of rows from ``first`` on; ``keeps``: store their input to kept tails."""
    row = first + tl.arange(0, TILE)
    is_live = row < live
    frame = tl.load(frame_ptr + row, mask=is_live, other=2)
    last = tl.load(last_ptr + row, mask=is_live, other=0).to(tl.int64)
    tails = tail_ptr + tail_column
    inner = tl.arange(0, STEP)
    total = tl.zeros([TILE, feature.shape[0]], tl.float32)
    for at in tl.range(0, 3 * CHANNELS, STEP, num_stages=STAGES):
        tap = at // CHANNELS
        before = tails + (last * 2 + frame + tap) * TAIL_WIDTH
        here = x_ptr + (row - 2 + tap) * x_stride
        source = tl.where(frame + tap >= 2, here, before) + tl.multiple_of(at - tap * CHANNELS, STEP)
        x = tl.load(source[:, None] + inner[None, :], mask=is_live[:, None], other=0.0)
        w = tl.load(w_ptr + feature[None, :] * (3 * CHANNELS) + (at + inner)[:, None])
        total = tl.dot(x, w, total)
    if keeps:
        keep = tl.load(keep_ptr + row, mask=is_live, other=-1).to(tl.int64)
        if tl.max(keep) >= 0:
            for channel in tl.range(0, CHANNELS, STEP):
                kept = tl.load(x_ptr + row[:, None] * x_stride + (channel + inner)[None, :], mask=(keep >= 0)[:, None], other=0.0)
                tl.store(tails + keep[:, None] * TAIL_WIDTH + (channel + inner)[None, :], kept, mask=(keep >= 0)[:, None])
    return total + tl.load(bias_ptr + feature).to(tl.float32)[None, :]


@triton.jit
def window_linear(
    x_ptr, x_stride, w_ptr, bias_ptr, live_ptr, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column, out_ptr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, TAIL_WIDTH: tl.constexpr, TILE: tl.constexpr,
    FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Convolution [rows, CHANNELS] (rows ``x_stride`` apart) -> [rows, WIDTH], 16 bit. Grid: (row tiles, WIDTH / FEATURES).

    w: [WIDTH, 3, CHANNELS]. frame, last, keep: int32 [rows]: a row's frame in its session's new part, the page before the new
    part, and 2 * page + slot of a kept chunk's tail that the row belongs to (or -1).
    """
    live = tl.load(live_ptr)
    first = tl.program_id(0) * TILE
    if first >= live:
        return
    begin(PDL)
    row = first + tl.arange(0, TILE)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    total = _window(x_ptr, x_stride, w_ptr, bias_ptr, live, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column, first,
                    feature, tl.program_id(1) == 0, CHANNELS, TAIL_WIDTH, TILE, STEP, STAGES)  # fmt: skip
    tl.store(out_ptr + row[:, None] * WIDTH + feature[None, :], total.to(out_ptr.dtype.element_ty))


@triton.jit
def window_activate(
    x_ptr, x_stride, w_ptr, bias_ptr, live_ptr, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column,
    gamma_ptr, beta_ptr, time_ptr, out_ptr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, TAIL_WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The middle of a residual block: mish(LayerNorm(convolution)) + time, 16 bit [rows, WIDTH]. Grid: (row tiles,)."""
    live = tl.load(live_ptr)
    first = tl.program_id(0) * TILE
    if first >= live:
        return
    row = first + tl.arange(0, TILE)
    feature = tl.arange(0, WIDTH)
    raw = _window(x_ptr, x_stride, w_ptr, bias_ptr, live, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column, first,
                  feature, True, CHANNELS, TAIL_WIDTH, TILE, STEP, STAGES)  # fmt: skip
    out = mish(layer_norm(raw, tl.load(gamma_ptr + feature), tl.load(beta_ptr + feature), WIDTH, EPS))
    out += tl.load(time_ptr + feature).to(tl.float32)[None, :]
    tl.store(out_ptr + row[:, None] * WIDTH + feature[None, :], out.to(out_ptr.dtype.element_ty))


@triton.jit
def window_residual(
    x_ptr, x_stride, w_ptr, bias_ptr, live_ptr, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column,
    gamma_ptr, beta_ptr, source_ptr, source_stride, shortcut_ptr, shortcut_bias_ptr, out_ptr,
    copy_ptr, next_gamma_ptr, next_beta_ptr, row_keep_ptr, page_ptr, scales_ptr,
    CHANNELS: tl.constexpr, SOURCE_CHANNELS: tl.constexpr, WIDTH: tl.constexpr, TAIL_WIDTH: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The end of a residual block: mish(LayerNorm(convolution)) + source W^T + b, float32 [rows, WIDTH]. Grid: (row tiles,).

    copy, row_keep, page, scales: where the next LayerNorm goes, see ``store_norm``.
    """
    live = tl.load(live_ptr)
    first = tl.program_id(0) * TILE
    if first >= live:
        return
    row = first + tl.arange(0, TILE)
    feature = tl.arange(0, WIDTH)
    total = product(source_ptr, source_stride, shortcut_ptr, row, feature, SOURCE_CHANNELS, STEP, STAGES)
    raw = _window(x_ptr, x_stride, w_ptr, bias_ptr, live, frame_ptr, last_ptr, keep_ptr, tail_ptr, tail_column, first,
                  feature, True, CHANNELS, TAIL_WIDTH, TILE, STEP, STAGES)  # fmt: skip
    total += mish(layer_norm(raw, tl.load(gamma_ptr + feature), tl.load(beta_ptr + feature), WIDTH, EPS))
    total += tl.load(shortcut_bias_ptr + feature).to(tl.float32)[None, :]
    tl.store(out_ptr + row[:, None] * WIDTH + feature[None, :], total)
    store_norm(total, row, feature, live, next_gamma_ptr, next_beta_ptr, copy_ptr, WIDTH, row_keep_ptr, page_ptr, scales_ptr, WIDTH, EPS)
