# mypy: ignore-errors
"""Causal convolutions of kernel 3 of the estimator for few rows, in Gluon, with the operations before them.

A program computes the three taps for a window of rows at once and adds them afterwards, each shifted by its rows; the first two rows
of a window are its history: rows before it, or the tail of the session's last stored chunk where its new part begins.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from bistream.gpu.arithmetic import fast_mish, layer_norm
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.batch import WINDOW_ITEM_NUMBERS, WindowItemField
from bistream.token2mel.cuda.pieces_few import copy_rows, prefetch, product

ITEM_NUMBERS = gl.constexpr(WINDOW_ITEM_NUMBERS)
ITEM_FIRST_ROW = gl.constexpr(int(WindowItemField.FIRST_ROW))
ITEM_FIRST_FRAME = gl.constexpr(int(WindowItemField.FIRST_FRAME))
ITEM_ROWS = gl.constexpr(int(WindowItemField.ROWS))
ITEM_PAGE = gl.constexpr(int(WindowItemField.PAGE))
PARTS = gl.constexpr(4)  # three taps and the shortcut


@gluon.jit
def _window(item_ptr, keep_ptr, item, local):
    """First row, its frame, rows and page of a window; where the tails of its rows are kept, or -1."""
    record = item_ptr + item * ITEM_NUMBERS
    first_row = gl.load(record + ITEM_FIRST_ROW)
    first_frame = gl.load(record + ITEM_FIRST_FRAME)
    count = gl.load(record + ITEM_ROWS)
    page = gl.load(record + ITEM_PAGE)
    exists = (first_frame - 2 + local >= 0) & (local >= 2) & (local < count + 2)
    keep = gl.load(keep_ptr + first_row - 2 + local, mask=exists, other=-1).to(gl.int64)
    return first_row, first_frame, count, page, keep


@gluon.jit
def _source(
    x_ptr, x_stride, skip_ptr, gamma_ptr, beta_ptr, time_ptr, row, inner, exists, chunk: gl.constexpr, WIDTH: gl.constexpr,
    SOURCE: gl.constexpr, EPS: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """A chunk of the channels of these rows in 16 bit, zeros where a row does not exist. See ``window_few``."""
    STEP: gl.constexpr = inner.shape[0]
    column = chunk * STEP + inner
    mask = gl.expand_dims(exists, 1)
    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(inner, 0)
    if SOURCE == "rows":
        value = gl.load(x_ptr + gl.expand_dims(row * x_stride, 1) + gl.expand_dims(column, 0), mask=mask, other=0.0)
    elif SOURCE == "raw":
        raw = gl.load(x_ptr + at, mask=mask, other=0.0).to(gl.float32)
        value = fast_mish(layer_norm(raw, gl.load(gamma_ptr + column), gl.load(beta_ptr + column), WIDTH, EPS))
        value = (value + gl.expand_dims(gl.load(time_ptr + column).to(gl.float32), 0)).to(DTYPE)
    elif chunk == 0:
        value = gl.load(x_ptr + at, mask=mask, other=0.0).to(DTYPE)
    else:
        value = gl.load(skip_ptr + at, mask=mask, other=0.0)
    return value


@gluon.jit
def window_few(
    x_ptr, x_stride, skip_ptr, gamma_ptr, beta_ptr, time_ptr, w_ptr, bias_ptr, shortcut_bias_ptr, count_ptr, item_ptr, keep_ptr,
    tail_ptr, tail_column, out_ptr, shortcut_ptr, save_ptr,
    CHANNELS: gl.constexpr, FEATURES: gl.constexpr, STEP: gl.constexpr, SOURCE: gl.constexpr, SHORTCUT: gl.constexpr, SAVE: gl.constexpr,
    WINDOW: gl.constexpr, WIDTH: gl.constexpr, TAIL_WIDTH: gl.constexpr, EPS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Convolution [rows, CHANNELS] -> out, 16 bit [rows, WIDTH]. Grid: WIDTH / FEATURES times any number n: a program
    computes every n-th window.

    SOURCE "rows": x is 16 bit, rows ``x_stride`` apart. "stream": float32 [rows, WIDTH], followed by the channels of ``skip`` (16 bit
    [rows, WIDTH]), if there are more. "raw": mish(LayerNorm(x)) + time of 16 bit x.
    w: [WIDTH / FEATURES, PARTS, FEATURES, CHANNELS]. SHORTCUT: the fourth part and its bias, float32 to ``shortcut``.
    SAVE: the source in 16 bit to ``save`` [rows, WIDTH].
    count: int32, number of windows. item: int32 [windows, ITEM_NUMBERS], see ``batch.WindowItemField``.
    keep: int32 [rows], 2 * page + slot of a kept tail, or -1. tail: [pages, 2, TAIL_WIDTH], from ``tail_column`` on.
    """
    start_successor()
    GROUPS: gl.constexpr = WIDTH // FEATURES
    group = gl.program_id(0) % GROUPS
    first_item = gl.program_id(0) // GROUPS
    items = gl.load(count_ptr)
    if first_item >= items:
        wait_predecessor()
        return
    LANES: gl.constexpr = STEP // 8 if STEP < 256 else 32  # of a warp along a row
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [num_warps, 1], [1, 0])
    CHUNKS: gl.constexpr = CHANNELS // STEP
    DTYPE: gl.constexpr = w_ptr.dtype.element_ty
    N: gl.constexpr = PARTS * FEATURES
    w = gl.allocate_shared_memory(DTYPE, [CHUNKS, N, STEP], gl.NVMMASharedLayout.get_default_for([N, STEP], DTYPE))
    x = gl.allocate_shared_memory(DTYPE, [CHUNKS, WINDOW, STEP], gl.NVMMASharedLayout.get_default_for([WINDOW, STEP], DTYPE))
    for chunk in gl.static_range(CHUNKS):
        copy_rows(w.index(chunk), w_ptr + group * (N * CHANNELS) + chunk * STEP, CHANNELS, N, STEP, num_warps)
    local = gl.arange(0, WINDOW, layout=gl.SliceLayout(1, ROWS))
    inner = gl.arange(0, STEP, layout=gl.SliceLayout(0, ROWS))
    if SOURCE == "raw":
        prefetch(gamma_ptr, WIDTH)
        prefetch(beta_ptr, WIDTH)
        prefetch(time_ptr, WIDTH)
    first_row, first_frame, count, page, keep = _window(item_ptr, keep_ptr, first_item, local)
    wait_predecessor()

    groups = gl.num_programs(0) // GROUPS
    for item in range(first_item, items, groups):
        frame = first_frame - 2 + local
        row = first_row - 2 + local
        exists = (frame >= 0) & (local < count + 2)
        tails = tail_ptr + tail_column
        for chunk in gl.static_range(CHUNKS):
            column = chunk * STEP + inner
            old = tails + gl.expand_dims((page * 2 + frame + 2).to(gl.int64) * TAIL_WIDTH, 1) + gl.expand_dims(column, 0)
            before = gl.load(old, mask=gl.expand_dims(frame < 0, 1), other=0.0)
            value = _source(x_ptr, x_stride, skip_ptr, gamma_ptr, beta_ptr, time_ptr, row, inner, exists, chunk, WIDTH, SOURCE, EPS, DTYPE)
            mine = gl.expand_dims(column // (CHANNELS // (WIDTH // FEATURES)) == group, 0)
            kept = tails + gl.expand_dims(keep * TAIL_WIDTH, 1) + gl.expand_dims(column, 0)
            x.index(chunk).store(gl.where(gl.expand_dims(frame < 0, 1), before, value))
            gl.store(kept, value, mask=mine & gl.expand_dims(keep >= 0, 1))
            if SAVE:
                at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(inner, 0)
                gl.store(save_ptr + at, value, mask=mine & gl.expand_dims(exists & (local >= 2), 1))
        async_copy.wait_group(0)
        gl.thread_barrier()
        total = product(x.index(0), w.index(0), STEP, N, WINDOW, STEP // 64, num_warps)
        for chunk in gl.static_range(1, CHUNKS):
            total += product(x.index(chunk), w.index(chunk), STEP, N, WINDOW, STEP // 64, num_warps)

        TAPS: gl.constexpr = gl.BlockedLayout([1, PARTS, 1], [2, 1, 16], [num_warps, 1, 1], [2, 1, 0])
        taps = gl.convert_layout(total.reshape((WINDOW, PARTS, FEATURES)), TAPS)
        even, odd = gl.split(taps.permute((0, 2, 1)).reshape((WINDOW, FEATURES, 2, 2)))
        tap_0, tap_2 = gl.split(even)
        tap_1, straight = gl.split(odd)
        OUT: gl.constexpr = tap_0.type.layout
        out_local = gl.arange(0, WINDOW, layout=gl.SliceLayout(1, OUT))
        feature = gl.arange(0, FEATURES, layout=gl.SliceLayout(0, OUT))
        index = gl.expand_dims(out_local, 1) + gl.expand_dims(feature * 0, 0)
        column = group * FEATURES + feature
        out = gl.gather(tap_0, gl.maximum(index - 2, 0), 0) + gl.gather(tap_1, gl.maximum(index - 1, 0), 0) + tap_2
        out += gl.expand_dims(gl.load(bias_ptr + column).to(gl.float32), 0)
        is_out = gl.expand_dims((out_local >= 2) & (out_local < count + 2), 1) & gl.expand_dims(feature >= 0, 0)
        at = gl.expand_dims((first_row - 2 + out_local) * WIDTH, 1) + gl.expand_dims(column, 0)
        gl.store(out_ptr + at, out.to(DTYPE), mask=is_out)
        if SHORTCUT:
            straight += gl.expand_dims(gl.load(shortcut_bias_ptr + column).to(gl.float32), 0)
            gl.store(shortcut_ptr + at, straight, mask=is_out)
        gl.thread_barrier()
        if item + groups < items:
            first_row, first_frame, count, page, keep = _window(item_ptr, keep_ptr, item + groups, local)
