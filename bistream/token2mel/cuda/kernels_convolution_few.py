# mypy: ignore-errors
"""Causal convolutions of kernel 3 of the estimator for few rows, with the operations before them.

A program computes the three taps for a window of rows at once and adds them afterwards, each shifted by its rows; the first two rows
of a window are its history: rows before it, or the tail of the session's last stored chunk where its new part begins.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import fast_mish, normalise
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.batch import WINDOW_ITEM_NUMBERS, WindowItemField

ITEM_NUMBERS = tl.constexpr(WINDOW_ITEM_NUMBERS)
ITEM_FIRST_ROW = tl.constexpr(int(WindowItemField.FIRST_ROW))
ITEM_FIRST_FRAME = tl.constexpr(int(WindowItemField.FIRST_FRAME))
ITEM_ROWS = tl.constexpr(int(WindowItemField.ROWS))
ITEM_PAGE = tl.constexpr(int(WindowItemField.PAGE))
TAPS = tl.constexpr(3)
PARTS = tl.constexpr(4)  # three taps and the shortcut


@triton.jit
def _weights(w_ptr, shortcut_w_ptr, first, column, CHANNELS: tl.constexpr, FEATURES: tl.constexpr, SHORTCUT: tl.constexpr):
    """Weights of these channels and features: [channels, FEATURES * PARTS], the parts of a feature after one another."""
    line = tl.arange(0, FEATURES * PARTS)
    feature, part = first + line // PARTS, line % PARTS
    at = w_ptr + ((feature * TAPS + part) * CHANNELS)[None, :] + column[:, None]
    if SHORTCUT:
        straight = shortcut_w_ptr + (feature * CHANNELS)[None, :] + column[:, None]
        return tl.load(tl.where((part < TAPS)[None, :], at, straight))
    return tl.load(at, mask=(part < TAPS)[None, :], other=0.0)


@triton.jit
def _source(
    x_ptr, x_stride, skip_ptr, affine, row, inner, exists, chunk: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    SOURCE: tl.constexpr, EPS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """A chunk of the channels of these rows in 16 bit, zeros where a row does not exist. See ``window_few``; affine: of "raw"."""
    at = row[:, None] * WIDTH + inner[None, :]
    if SOURCE == "rows":
        value = tl.load(x_ptr + row[:, None] * x_stride + (chunk * STEP + inner)[None, :], mask=exists[:, None], other=0.0)
    elif SOURCE == "raw":
        raw = tl.load(x_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
        gamma, beta, time = affine
        value = (fast_mish(normalise(raw, WIDTH, EPS) * gamma + beta) + time).to(DTYPE)
    elif chunk == 0:
        value = tl.load(x_ptr + at, mask=exists[:, None], other=0.0).to(DTYPE)
    else:
        value = tl.load(skip_ptr + at, mask=exists[:, None], other=0.0)
    return value


@triton.jit
def _shifted(tap, row, SHIFT: tl.constexpr):
    """Row r is row r - SHIFT of ``tap``; the first rows are of no use."""
    index = tl.maximum(row - SHIFT, 0)[:, None]
    return tl.gather(tap, tl.broadcast_to(index, tap.shape), 0)


@triton.jit
def window_few(
    x_ptr, x_stride, skip_ptr, gamma_ptr, beta_ptr, time_ptr, w_ptr, bias_ptr, shortcut_w_ptr, shortcut_bias_ptr, count_ptr, item_ptr,
    keep_ptr, tail_ptr, tail_column, out_ptr, shortcut_ptr, save_ptr,
    CHANNELS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, SOURCE: tl.constexpr, SHORTCUT: tl.constexpr, SAVE: tl.constexpr,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr, TAIL_WIDTH: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Convolution [rows, CHANNELS] -> out, 16 bit [rows, WIDTH]. Grid: WIDTH / FEATURES * windows.

    SOURCE "rows": x is 16 bit, rows ``x_stride`` apart. "stream": float32 [rows, WIDTH], followed by the channels of ``skip`` (16 bit
    [rows, WIDTH]), if there are more. "raw": mish(LayerNorm(x)) + time of 16 bit x.
    w: [WIDTH, TAPS, CHANNELS]. SHORTCUT: a product with [WIDTH, CHANNELS] and its bias, float32 to ``shortcut``.
    SAVE: the source in 16 bit to ``save`` [rows, WIDTH].
    count: int32, number of windows. item: int32 [windows, ITEM_NUMBERS], see ``batch.WindowItemField``.
    keep: int32 [rows], 2 * page + slot of a kept tail, or -1. tail: [pages, 2, TAIL_WIDTH], from ``tail_column`` on.
    """
    if PDL:
        start_successor()
    GROUPS: tl.constexpr = WIDTH // FEATURES
    CHUNKS: tl.constexpr = CHANNELS // STEP
    DTYPE: tl.constexpr = w_ptr.dtype.element_ty
    group = tl.program_id(0) % GROUPS
    item = tl.program_id(0) // GROUPS
    if item >= tl.load(count_ptr):
        if PDL:
            wait_predecessor()
        return
    inner = tl.arange(0, STEP)
    weights = ()
    for chunk in tl.static_range(CHUNKS):
        w = _weights(w_ptr, shortcut_w_ptr, group * FEATURES, chunk * STEP + inner, CHANNELS, FEATURES, SHORTCUT)
        weights = weights + (w,)
    record = item_ptr + item * ITEM_NUMBERS
    first_row = tl.load(record + ITEM_FIRST_ROW)
    first_frame = tl.load(record + ITEM_FIRST_FRAME)
    count = tl.load(record + ITEM_ROWS)
    page = tl.load(record + ITEM_PAGE)
    local = tl.arange(0, WINDOW)
    row = first_row - 2 + local
    frame = first_frame - 2 + local
    exists = (frame >= 0) & (local < count + 2)
    keep = tl.load(keep_ptr + row, mask=exists & (local >= 2), other=-1).to(tl.int64)
    affine = ()
    if SOURCE == "raw":
        every = inner[None, :]  # in the layout of the rows
        affine = (
            tl.load(gamma_ptr + every).to(tl.float32),
            tl.load(beta_ptr + every).to(tl.float32),
            tl.load(time_ptr + every).to(tl.float32),
        )
    if PDL:
        wait_predecessor()

    tails = tail_ptr + tail_column
    total = tl.zeros([WINDOW, FEATURES * PARTS], tl.float32)
    for chunk in tl.static_range(CHUNKS):
        column = chunk * STEP + inner
        old = tails + ((page * 2 + frame + 2).to(tl.int64) * TAIL_WIDTH)[:, None] + column[None, :]
        before = tl.load(old, mask=(frame < 0)[:, None], other=0.0)
        value = _source(x_ptr, x_stride, skip_ptr, affine, row, inner, exists, chunk, STEP, WIDTH, SOURCE, EPS, DTYPE)
        mine = (column // (CHANNELS // GROUPS) == group)[None, :]
        tl.store(tails + (keep * TAIL_WIDTH)[:, None] + column[None, :], value, mask=mine & (keep >= 0)[:, None])
        if SAVE:
            at = row[:, None] * WIDTH + inner[None, :]
            tl.store(save_ptr + at, value, mask=mine & (exists & (local >= 2))[:, None])
        total = tl.dot(tl.where((frame < 0)[:, None], before, value), weights[chunk], total)

    even, odd = tl.split(total.reshape((WINDOW, FEATURES, 2, 2)))
    tap_0, tap_2 = tl.split(even)
    tap_1, straight = tl.split(odd)
    feature = group * FEATURES + tl.arange(0, FEATURES)
    out = _shifted(tap_0, local, 2) + _shifted(tap_1, local, 1) + tap_2
    out += tl.load(bias_ptr + feature).to(tl.float32)[None, :]
    is_out = ((local >= 2) & (local < count + 2))[:, None]
    at = row[:, None] * WIDTH + feature[None, :]
    tl.store(out_ptr + at, out.to(DTYPE), mask=is_out)
    if SHORTCUT:
        straight += tl.load(shortcut_bias_ptr + feature).to(tl.float32)[None, :]
        tl.store(shortcut_ptr + at, straight, mask=is_out)
