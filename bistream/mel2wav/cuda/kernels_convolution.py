# mypy: ignore-errors
"""Sums of convolutions with a fused epilogue: nearly all of the vocoder's arithmetic.

Rows are concatenated in 16-bit [positions, channels], each one surrounded by a gap of zeros that is wider than the reach of any
convolution. So a tile of positions ignores row boundaries: its results in gaps are replaced by zeros at the end.

A result is [outputs, positions]: the weights are the left operand of the product, and the right one are positions of the activations,
read anew for every tap. The sum runs over (convolution, tap, channel), in one loop.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import add_in_order, snake_of_channels
from bistream.gpu.dependent_launch import begin
from bistream.mel2wav.cuda.batch import GROUP_NUMBERS, GroupField

FIELDS = tl.constexpr(GROUP_NUMBERS)
WEIGHTS = tl.constexpr(int(GroupField.WEIGHTS))
TAPS = tl.constexpr(int(GroupField.TAPS))
EXACT_TAP = tl.constexpr(int(GroupField.EXACT_TAP))
FIRST_TAP = tl.constexpr(int(GroupField.FIRST_TAP))
IN_ROW = tl.constexpr(int(GroupField.IN_ROW))
DILATION = tl.constexpr(int(GroupField.DILATION))
RESIDUALS = tl.constexpr(int(GroupField.RESIDUALS))
RESIDUAL_ROW = tl.constexpr(int(GroupField.RESIDUAL_ROW))
OUT_ROW = tl.constexpr(int(GroupField.OUT_ROW))
ACTIVES = tl.constexpr(int(GroupField.ACTIVES))
ACTIVE_ROW = tl.constexpr(int(GroupField.ACTIVE_ROW))


@triton.jit
def _parts(table):
    """First taps of the second and third convolution of a sum; row of tap 0 and distance of taps of all three."""
    taps = (tl.load(table + FIRST_TAP + 1), tl.load(table + FIRST_TAP + 2))
    rows = (tl.load(table + IN_ROW), tl.load(table + IN_ROW + 1), tl.load(table + IN_ROW + 2))
    dilations = (tl.load(table + DILATION), tl.load(table + DILATION + 1), tl.load(table + DILATION + 2))
    return taps, rows, dilations


@triton.jit
def _factors(
    x, w, first, block, parts, last_row, weights, step,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, SLICE: tl.constexpr,
    BULK: tl.constexpr,
):  # fmt: skip
    """One step of the sum, STEP channels of a tap: [outputs, STEP] and [STEP, positions]. weights: the group's first slice of weights."""
    PANELS: tl.constexpr = CHANNELS // STEP
    taps, rows, dilations = parts
    tap = step // PANELS
    is_second, is_third = tap >= taps[0], tap >= taps[1]
    row = first + tl.where(is_third, rows[2], tl.where(is_second, rows[1], rows[0]))
    row += tap * tl.where(is_third, dilations[2], tl.where(is_second, dilations[1], dilations[0]))
    column = step % PANELS * STEP
    weight = (weights + step // (SLICE // STEP)) * OUTPUTS + block
    within = step % (SLICE // STEP) * STEP
    if BULK:
        left, right = w.load([weight, within]), tl.trans(x.load([row, column]))
    else:
        inner = tl.arange(0, STEP)
        place = tl.minimum(tl.maximum(row + tl.arange(0, TILE), 0), last_row) * CHANNELS + column
        left = tl.load(w + ((weight + tl.arange(0, BLOCK)) * SLICE + within)[:, None] + inner[None, :])
        right = tl.load(x + place[None, :] + inner[:, None])
    return left, right


@triton.jit
def _prefetch(w_ptr, first, rows, turn, turns, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, SLICE: tl.constexpr):
    """Bring this program's share of a block's weights to the L2 cache. first: the block's first row of SLICE; rows: of the block."""
    LINES: tl.constexpr = 256
    for line in tl.range(turn * LINES, rows, turns * LINES, num_stages=1):
        row = line + tl.arange(0, LINES)
        row = tl.where(row < rows, row, 0)
        place = w_ptr + (first + row // BLOCK * OUTPUTS + row % BLOCK) * SLICE
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [place], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["last_row", "scale", "slope"])
def sum_convolutions(
    x, w, x_ptr, w_ptr, out_ptr, table_ptr, bias_ptr, alpha_ptr, real_ptr, extent_ptr, last_row, scale, slope,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, FOLD: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    STEP: tl.constexpr, SLICE: tl.constexpr, STAGES: tl.constexpr, BULK: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = (convolutions + residuals + bias) * scale, once per group. Grid: (tiles of positions * OUTPUTS / BLOCK, groups).

    x: 16-bit [last_row + 1, CHANNELS], any number of slots, concatenated; out: [any, OUTPUTS] likewise. w: [taps * CHANNELS / SLICE,
    OUTPUTS, SLICE], group after group. BULK: x and w are descriptors of tiles, which the GPU copies as a whole; else addresses.
    PREFETCH: weights begin to come before the preceding kernel has ended.
    table: int32 [groups, FIELDS], see ``batch.GroupField``. bias: [groups, OUTPUTS], alpha: [any, OUTPUTS], those of a group from the
    row of its number on. real: int8 per position, 0 in gaps. extent: positions in use. FOLD: positions that are one position here; their
    outputs follow each other.
    KIND: "snake" (the sum itself, and any number of activations), "leaky" or "elu" (16 bit to out, the remainder to the active row).

    "elu" is nearly exact. The tensor cores truncate toward zero when they accumulate, an error that grows over a long sum. So from
    EXACT_TAP on each step's product is a sum of its own, added with correct float32 rounding; all products before are far smaller.
    """
    BLOCKS: tl.constexpr = OUTPUTS // BLOCK
    first = tl.program_id(0) // BLOCKS * TILE
    extent = tl.load(extent_ptr)
    if first * FOLD >= extent:
        return
    group = tl.program_id(1)
    table = table_ptr + group * FIELDS
    block = tl.program_id(0) % BLOCKS * BLOCK
    steps = tl.load(table + TAPS) * (CHANNELS // STEP)
    weights = tl.load(table + WEIGHTS)
    if PREFETCH:
        rows = steps * STEP // SLICE * BLOCK
        _prefetch(w_ptr, weights * OUTPUTS + block, rows, first // TILE, tl.cdiv(extent, TILE * FOLD), OUTPUTS, BLOCK, SLICE)
    parts = _parts(table)
    begin(PDL)
    position = first + tl.arange(0, TILE)
    output = block + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, TILE], tl.float32)
    rough = steps
    if KIND == "elu":
        rough = tl.load(table + EXACT_TAP) * (CHANNELS // STEP)
    for step in tl.range(0, rough, num_stages=STAGES):
        left, right = _factors(x, w, first, block, parts, last_row, weights, step, CHANNELS, OUTPUTS, TILE, BLOCK, STEP, SLICE, BULK)
        total = tl.dot(left, right, total)
    if KIND == "elu":
        for step in tl.range(rough, steps, num_stages=STAGES):
            left, right = _factors(x, w, first, block, parts, last_row, weights, step, CHANNELS, OUTPUTS, TILE, BLOCK, STEP, SLICE, BULK)
            total = add_in_order(total, tl.dot(left, right))
    total += tl.load(bias_ptr + group * OUTPUTS + output)[:, None]
    for residual in tl.range(0, tl.load(table + RESIDUALS), num_stages=1):
        row = tl.load(table + RESIDUAL_ROW + residual)
        total += tl.load(x_ptr + ((row + position) * CHANNELS)[None, :] + output[:, None]).to(tl.float32)
    is_real = tl.load(real_ptr + position * FOLD)[None, :]
    for number in tl.static_range(1, FOLD):
        is_real = tl.where((output < number * (OUTPUTS // FOLD))[:, None], is_real, tl.load(real_ptr + position * FOLD + number)[None, :])
    total = tl.where(is_real != 0, total * scale, 0.0)
    _finish(total, out_ptr + output[:, None], table, alpha_ptr + group * OUTPUTS + output, position, slope, OUTPUTS, KIND)


@triton.jit
def _finish(total, out_ptr, table, alpha_ptr, position, slope, OUTPUTS: tl.constexpr, KIND: tl.constexpr):
    """Store a result and its activations. out: of position 0, for each output; alpha: of each output, the next one OUTPUTS further on."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.load(table + OUT_ROW)
    out = out_ptr + ((row + position) * OUTPUTS)[None, :]
    if KIND == "snake":
        if row >= 0:
            tl.store(out, total.to(dtype))
        for copy in tl.range(0, tl.load(table + ACTIVES), num_stages=1):
            active = out_ptr + ((tl.load(table + ACTIVE_ROW + copy) + position) * OUTPUTS)[None, :]
            alpha = tl.load(alpha_ptr + copy * OUTPUTS)[:, None]
            tl.store(active, snake_of_channels(total, alpha).to(dtype))
    elif KIND == "leaky":
        tl.store(out, tl.where(total > 0, total, total * slope).to(dtype))
    else:
        active = out_ptr + ((tl.load(table + ACTIVE_ROW) + position) * OUTPUTS)[None, :]
        value = tl.where(total > 0, total, tl.exp(total) - 1.0)
        high = value.to(dtype)
        tl.store(out, high)
        tl.store(active, (value - high.to(tl.float32)).to(dtype))
