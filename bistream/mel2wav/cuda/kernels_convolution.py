# mypy: ignore-errors
"""Sums of convolutions over windows that stay in shared memory: nearly all of the vocoder's arithmetic. Gluon, Hopper only.

Rows are concatenated in 16-bit [positions, channels], each one surrounded by a gap of zeros that is wider than the reach of any
convolution. So a tile of positions ignores row boundaries: its results in gaps are replaced by zeros at the end.

A result is [64 channels, N positions]. The left operand of a product is a tile of weights, the right one N positions of 64 channels, which
may begin at any row of a window: both TMA and the tensor cores derive the 128-byte swizzle from the address. So all taps of a
convolution read one copy of the window. A residual is one more product, with the identity matrix: exact in 16 bit.

Two producer warps copy windows and weights to shared memory. Two consumer warpgroups take turns on the tensor cores: while one
multiplies, the other one computes its epilogue.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bistream.gpu.arithmetic import snake_of_channels
from bistream.gpu.barriers import barriers
from bistream.mel2wav.cuda.batch import SEGMENT_NUMBERS, SegmentField

FIELDS = gl.constexpr(SEGMENT_NUMBERS)
IN_ROW = gl.constexpr(int(SegmentField.IN_ROW))
TAPS = gl.constexpr(int(SegmentField.TAPS))
WRAP = gl.constexpr(int(SegmentField.WRAP))
DILATION = gl.constexpr(int(SegmentField.DILATION))
PAD = gl.constexpr(int(SegmentField.PAD))
WEIGHT_TILE = gl.constexpr(int(SegmentField.WEIGHT_TILE))
RESIDUALS = gl.constexpr(int(SegmentField.RESIDUALS))
RESIDUAL_ROW = gl.constexpr(int(SegmentField.RESIDUAL_ROW))
OUT_ROW = gl.constexpr(int(SegmentField.OUT_ROW))
ACTIVES = gl.constexpr(int(SegmentField.ACTIVES))
ACTIVE_ROW = gl.constexpr(int(SegmentField.ACTIVE_ROW))
VALUES = gl.constexpr(int(SegmentField.VALUES))

HALO = gl.constexpr(16)  # a window extends beyond its tile by multiples of this many rows
SLICE = gl.constexpr(64)  # channels of a window and of a result
WEIGHT_BYTES = gl.constexpr(8192)
TILE_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def _rows(pool, row, ALL: gl.constexpr, COUNT: gl.constexpr):
    """View [COUNT, 64] of the windows' memory from any row on. ALL: rows of the memory."""
    line = pool._reinterpret(pool.dtype, [ALL, 1, SLICE], PLAIN).index(row)
    return line._reinterpret(pool.dtype, [COUNT, SLICE], TILE_LAYOUT)


@gluon.jit
def _units(group, units):
    """First unit of a group that this program computes, and their number: the units of all groups go round-robin to the programs.

    Computed anew for each group: the compiler dropped a loop-carried variable that determined nothing but a loop's length.
    """
    programs = gl.num_programs(0)
    first = (gl.program_id(0) + programs - group * units % programs) % programs
    return first, gl.maximum(units - first + programs - 1, 0) // programs


@gluon.jit
def _fetch_windows(
    x_desc, halo_desc, table_ptr, windows, bars, tiles,
    N: gl.constexpr, ROWS: gl.constexpr, SIZE: gl.constexpr, PANELS: gl.constexpr, PARTS: gl.constexpr,
    GROUPS: gl.constexpr, SEGMENTS: gl.constexpr,
):  # fmt: skip
    """Producer warp: every unit's windows, 64 channels at a time."""
    full, empty = bars
    programs = gl.num_programs(0)
    units = tiles * PARTS
    item = 0
    for group in range(GROUPS):
        first, count = _units(group, units)
        for number in range(count):
            position = (first + number * programs) // PARTS * N
            for segment in range(SEGMENTS):
                at = table_ptr + (group * SEGMENTS + segment) * FIELDS
                row = gl.load(at + IN_ROW) + position - gl.load(at + PAD)
                halos = ((gl.load(at + WRAP) - 1) * gl.load(at + DILATION) + HALO - 1) // HALO
                for panel in range(PANELS):
                    slot = item % SIZE
                    mbarrier.wait(empty.index(slot), (item // SIZE & 1) ^ 1)
                    bar = full.index(slot)
                    if halos == 1:
                        mbarrier.expect(bar, (N + HALO) * 128)
                    elif halos == 2:
                        mbarrier.expect(bar, (N + 2 * HALO) * 128)
                    elif halos == 3:
                        mbarrier.expect(bar, (N + 3 * HALO) * 128)
                    else:
                        mbarrier.expect(bar, (N + 4 * HALO) * 128)
                    tma.async_copy_global_to_shared(x_desc, [row, panel * SLICE], bar, _rows(windows, slot * ROWS, SIZE * ROWS, N))
                    for halo in range(gl.minimum(gl.maximum(halos, 1), 4)):
                        beyond = N + halo * HALO
                        target = _rows(windows, slot * ROWS + beyond, SIZE * ROWS, HALO)
                        tma.async_copy_global_to_shared(halo_desc, [row + beyond, panel * SLICE], bar, target)
                    item += 1


@gluon.jit
def _fetch_weights(
    w_desc, table_ptr, weights, bars, tiles,
    SIZE: gl.constexpr, PANELS: gl.constexpr, BLOCKS: gl.constexpr, SHARE: gl.constexpr, GROUPS: gl.constexpr, SEGMENTS: gl.constexpr,
):  # fmt: skip
    """Producer warp: every result's weights, a [64, 64] tile for each tap and 64 channels, in order of use."""
    full, empty = bars
    PARTS: gl.constexpr = BLOCKS // SHARE
    programs = gl.num_programs(0)
    units = tiles * PARTS
    item = 0
    for group in range(GROUPS):
        first, count = _units(group, units)
        for local in range(count * SHARE):
            block = (first + local // SHARE * programs) % PARTS * SHARE + local % SHARE
            for segment in range(SEGMENTS):
                at = table_ptr + (group * SEGMENTS + segment) * FIELDS
                steps = PANELS * gl.load(at + TAPS)
                tile = gl.load(at + WEIGHT_TILE) + block * steps
                for step in range(steps + gl.load(at + RESIDUALS)):
                    slot = item % SIZE
                    mbarrier.wait(empty.index(slot), (item // SIZE & 1) ^ 1)
                    mbarrier.expect(full.index(slot), WEIGHT_BYTES)
                    row = gl.where(step < steps, tile + step, 0) * SLICE  # tile 0: the identity matrix
                    tma.async_copy_global_to_shared(w_desc, [row, 0], full.index(slot), weights.index(slot))
                    item += 1


@gluon.jit
def _emit(value, desc, row, column, stage):
    """Store [64 channels, N] to N rows of ``desc`` through shared memory, after the previous store has read it."""
    tma.store_wait(0)
    gl.thread_barrier()
    stage.permute((1, 0)).store(value.to(stage.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(desc, [row, column], stage)


@gluon.jit
def _step(total, right, weights, full, empty, step, begin, fresh, SIZE: gl.constexpr):
    """Issue one product, wait for the previous one and release its weights. begin: first product of a result; fresh: of a sum."""
    slot = step % SIZE
    mbarrier.wait(full.index(slot), step // SIZE & 1)
    total = warpgroup_mma(weights.index(slot), right.permute((1, 0)), total, use_acc=step > fresh, is_async=True)
    total = warpgroup_mma_wait(1, deps=(total,))
    mbarrier.arrive(empty.index((step + SIZE - 1) % SIZE), pred=step > begin)
    return total


@gluon.jit
def _fetch_residual(desc, row, column, bar, stage, N: gl.constexpr):
    """Start copying a residual to ``stage``, once all threads are done with its old content."""
    gl.thread_barrier()
    mbarrier.expect(bar, N * 128)
    tma.async_copy_global_to_shared(desc, [row, column], bar, stage)


@gluon.jit
def _multiply(
    total, x_desc, table_ptr, pools, all_bars, position, column, group, sub, item, step, loads,
    INDEX: gl.constexpr, N: gl.constexpr, ROWS: gl.constexpr, WINDOWS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr,
    PANELS: gl.constexpr, SEGMENTS: gl.constexpr, EXACT: gl.constexpr,
):  # fmt: skip
    """Sum of all products of a result. Returns it with products in flight, the next window, the next weights, and loads so far.

    EXACT: the tensor cores truncate toward zero when they accumulate, an error that grows over a long sum. So each of the first
    segment's first WRAP taps is a sum of its own, and these are added with correct float32 rounding; the products of all other taps
    are far smaller. No residuals.
    """
    windows, weights, stages = pools
    window_full, window_empty, weight_full, weight_empty, _, stage_free, residual_full = all_bars
    stage = stages.index(INDEX % STAGES)
    begin, first_item = step, item
    fresh = -1 if EXACT else begin  # the sum is zero on entry
    exact = total
    part = total
    for segment in range(SEGMENTS):
        at = table_ptr + (group * SEGMENTS + segment) * FIELDS
        taps, wrap, dilation = gl.load(at + TAPS), gl.load(at + WRAP), gl.load(at + DILATION)
        residuals = gl.load(at + RESIDUALS)
        for panel in range(PANELS):
            slot = item % WINDOWS
            mbarrier.wait(window_full.index(slot), item // WINDOWS & 1)
            if panel == PANELS - 1:
                if STAGES == 1:
                    mbarrier.wait(stage_free.index(0), (sub & 1) ^ 1, pred=segment == 0)
                if residuals > 0:
                    tma.store_wait(0)
                    _fetch_residual(x_desc, gl.load(at + RESIDUAL_ROW) + position, column, residual_full.index(INDEX), stage, N)
            alone = 0
            if EXACT:
                alone = gl.where(segment == 0, wrap, 0)
                for tap in range(alone):
                    right = _rows(windows, slot * ROWS + tap * dilation, WINDOWS * ROWS, N)
                    part = _step(part, right, weights, weight_full, weight_empty, step, begin, step, SLOTS)
                    total, part = warpgroup_mma_wait(0, deps=(total, part))
                    mbarrier.arrive(window_empty.index((item + WINDOWS - 1) % WINDOWS), pred=(tap == 0) & (item > first_item))
                    exact += part
                    step += 1
            for tap in range(alone, taps):
                right = _rows(windows, slot * ROWS + tap % wrap * dilation, WINDOWS * ROWS, N)
                total = _step(total, right, weights, weight_full, weight_empty, step, begin, fresh, SLOTS)
                mbarrier.arrive(window_empty.index((item + WINDOWS - 1) % WINDOWS), pred=(tap == 0) & (item > first_item))
                step += 1
            item += 1
        for residual in range(residuals):
            if residual > 0:
                total = warpgroup_mma_wait(0, deps=(total,))
                _fetch_residual(x_desc, gl.load(at + RESIDUAL_ROW + residual) + position, column, residual_full.index(INDEX), stage, N)
            mbarrier.wait(residual_full.index(INDEX), loads & 1)
            total = _step(total, stage, weights, weight_full, weight_empty, step, begin, begin, SLOTS)
            step += 1
            loads += 1
    if EXACT:
        total = warpgroup_mma_wait(0, deps=(total,))
        total += exact
    return total, item, step, loads


@gluon.jit
def _finish(total, desc, at, alpha_ptr, position, column, stage, slope, WIDTH: gl.constexpr, KIND: gl.constexpr):
    """Store a result and its activations as the segment requests. alpha: of the result's channels, the next one WIDTH further on."""
    out_row = gl.load(at + OUT_ROW)
    if KIND == "snake":
        if out_row >= 0:
            _emit(total, desc, out_row + position, column, stage)
        for copy in range(gl.load(at + ACTIVES)):
            alpha = gl.expand_dims(gl.load(alpha_ptr + copy * WIDTH), 1)
            _emit(snake_of_channels(total, alpha), desc, gl.load(at + ACTIVE_ROW + copy) + position, column, stage)
    elif KIND == "leaky":
        _emit(gl.where(total > 0, total, total * slope), desc, out_row + position, column, stage)
    else:  # "elu", split into two 16-bit numbers
        active = gl.where(total > 0, total, gl.exp(total) - 1.0)
        high = active.to(stage.dtype)
        _emit(high, desc, out_row + position, column, stage)
        _emit(active - high.to(gl.float32), desc, gl.load(at + ACTIVE_ROW) + position, column, stage)


@gluon.jit
def _consumer(
    arguments, pools, all_bars, tiles,
    INDEX: gl.constexpr, N: gl.constexpr, ROWS: gl.constexpr, WINDOWS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr,
    PANELS: gl.constexpr, BLOCKS: gl.constexpr, SHARE: gl.constexpr, GROUPS: gl.constexpr, SEGMENTS: gl.constexpr, KIND: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: every second result, products, then epilogue (bias and activation)."""
    x_desc, out_desc, table_ptr, bias_ptr, alpha_ptr, real_ptr, scale, slope = arguments
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    PARTS: gl.constexpr = BLOCKS // SHARE
    _, window_empty, _, weight_empty, turn, stage_free, _ = all_bars
    stage = pools[2].index(INDEX % STAGES)
    channel = gl.arange(0, SLICE, layout=gl.SliceLayout(1, SUMS))
    column = gl.arange(0, N, layout=gl.SliceLayout(0, SUMS))
    programs = gl.num_programs(0)
    units = tiles * PARTS
    subs, items, steps, loads = 0, 0, 0, 0
    for group in range(GROUPS):
        first, count = _units(group, units)
        each = 0
        for segment in range(SEGMENTS):
            at = table_ptr + (group * SEGMENTS + segment) * FIELDS
            each += PANELS * gl.load(at + TAPS) + gl.load(at + RESIDUALS)
        for local in range((INDEX + subs) % 2, count * SHARE, 2):
            sub = subs + local
            unit = first + local // SHARE * programs
            position = unit // PARTS * N
            block = unit % PARTS * SHARE + local % SHARE
            total = gl.zeros([SLICE, N], gl.float32, layout=SUMS)
            mbarrier.wait(turn.index(INDEX), (sub // 2 & 1) ^ (1 - INDEX))
            total, item, step, loads = _multiply(
                total, x_desc, table_ptr, pools, all_bars, position, block * SLICE, group, sub,
                items + local // SHARE * (SEGMENTS * PANELS), steps + local * each, loads,
                INDEX, N, ROWS, WINDOWS, SLOTS, STAGES, PANELS, SEGMENTS, KIND == "elu",
            )  # fmt: skip
            mbarrier.arrive(turn.index(1 - INDEX))
            total = warpgroup_mma_wait(0, deps=(total,))
            mbarrier.arrive(window_empty.index((item + WINDOWS - 1) % WINDOWS))
            mbarrier.arrive(weight_empty.index((step + SLOTS - 1) % SLOTS))
            at = table_ptr + group * SEGMENTS * FIELDS
            values = gl.load(at + VALUES)
            feature = values * (BLOCKS * SLICE) + block * SLICE + channel
            is_real = gl.load(real_ptr + position + column) != 0
            total += gl.expand_dims(gl.load(bias_ptr + feature), 1)
            if KIND != "snake":
                total *= scale
            total = gl.where(gl.expand_dims(is_real, 0), total, 0.0)
            _finish(total, out_desc, at, alpha_ptr + feature, position, block * SLICE, stage, slope, BLOCKS * SLICE, KIND)
            if STAGES == 1:
                tma.store_wait(0)
                mbarrier.arrive(stage_free.index(0))
        subs += count * SHARE
        items += count * (SEGMENTS * PANELS)
        steps += count * SHARE * each
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["scale", "slope"])
def sum_windows(
    x_desc, halo_desc, w_desc, out_desc, table_ptr, bias_ptr, alpha_ptr, real_ptr, extent_ptr, scale, slope,
    N: gl.constexpr, ROWS: gl.constexpr, WINDOWS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr,
    PANELS: gl.constexpr, BLOCKS: gl.constexpr, SHARE: gl.constexpr, GROUPS: gl.constexpr, SEGMENTS: gl.constexpr, KIND: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """out = (sum over segments of convolution and residuals + bias) * scale, once per group. Grid: any number of programs.

    x_desc, out_desc: [N, 64] tiles, halo_desc: [16, 64] tiles of activations, any number of slots, concatenated; w_desc: [64, 64]
    tiles of weights. table: int32 [GROUPS, SEGMENTS, FIELDS], see ``batch.SegmentField``. bias, alpha: [any, BLOCKS * 64].
    real: int8 per position, 0 in gaps.
    extent: positions in use. PANELS, BLOCKS: input and output channels / 64. SHARE: successive results that use the same windows.
    ROWS: of a window, a multiple of 64 and at least N + 64; WINDOWS, SLOTS: windows and tiles of weights in flight. STAGES: tiles
    for residuals and results. KIND: "snake", "leaky" or "elu" (16 bit to out, the remainder to the first active row).
    """
    DTYPE: gl.constexpr = x_desc.dtype
    tiles = (gl.load(extent_ptr) + N - 1) // N
    windows = gl.allocate_shared_memory(DTYPE, [WINDOWS * ROWS // SLICE, SLICE, SLICE], TILE_LAYOUT)
    weights = gl.allocate_shared_memory(DTYPE, [SLOTS, SLICE, SLICE], TILE_LAYOUT)
    stages = gl.allocate_shared_memory(DTYPE, [STAGES, N, SLICE], TILE_LAYOUT)
    window_full, window_empty = barriers(WINDOWS, 1), barriers(WINDOWS, SHARE)
    weight_full, weight_empty = barriers(SLOTS, 1), barriers(SLOTS, 1)
    turn, stage_free, residual_full = barriers(2, 1), barriers(1, 1), barriers(2, 1)
    fence_async_shared()
    all_bars = (window_full, window_empty, weight_full, weight_empty, turn, stage_free, residual_full)
    pools = (windows, weights, stages)
    PARTS: gl.constexpr = BLOCKS // SHARE
    arguments = (x_desc, out_desc, table_ptr, bias_ptr, alpha_ptr, real_ptr, scale, slope)
    window_bars, weight_bars = (window_full, window_empty), (weight_full, weight_empty)
    gl.warp_specialize(
        [
            (_consumer, (
                arguments, pools, all_bars, tiles, 0, N, ROWS, WINDOWS, SLOTS, STAGES, PANELS, BLOCKS, SHARE, GROUPS, SEGMENTS, KIND,
            )),
            (_consumer, (
                arguments, pools, all_bars, tiles, 1, N, ROWS, WINDOWS, SLOTS, STAGES, PANELS, BLOCKS, SHARE, GROUPS, SEGMENTS, KIND,
            )),
            (_fetch_windows, (
                x_desc, halo_desc, table_ptr, windows, window_bars, tiles, N, ROWS, WINDOWS, PANELS, PARTS, GROUPS, SEGMENTS,
            )),
            (_fetch_weights, (w_desc, table_ptr, weights, weight_bars, tiles, SLOTS, PANELS, BLOCKS, SHARE, GROUPS, SEGMENTS)),
        ],
        [4, 1, 1],
        [232, 40, 40],
    )  # fmt: skip
