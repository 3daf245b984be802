# mypy: ignore-errors
"""Convolution of the vocoder with everything that surrounds it, on rows of different lengths.

Activations are [rows, positions, channels], 16 bit; what lies behind a row's end is never read (zeros stand for it). One kernel
serves plain, dilated, strided and transposed convolutions; a transposed one of stride r is r convolutions, one for each
position modulo r, whose outputs interleave.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

META = tl.constexpr(16)  # int32 numbers per row, see ``rows``
META_FRAMES = tl.constexpr(1)


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the kernel before, then let the next one start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def snake(x, alpha):
    """x + sin(alpha x)^2 / alpha. The square has period pi; the series around its zeros is good to 1e-7 where it is used."""
    turns = x * alpha * 0.3183098861837907
    r = turns - tl.floor(turns + 0.5)
    s = r * r
    series = 0.0821458866 - 0.0073704309 * s
    series = -0.5992645293 + series * s
    series = 2.5501640399 + series * s
    series = -5.1677127800 + series * s
    wave = r * (3.1415926536 + series * s)
    return x + wave * wave / (alpha + 1e-9)


@triton.jit
def leaky(x, slope):
    return tl.where(x > 0, x, x * slope)


_SIZES = ["x_size", "out_size", "in_rate", "in_extra", "out_rate", "out_extra", "taps", "dilation", "stride", "pad", "crop"]


@triton.jit(do_not_specialize=_SIZES)
def convolve(  # noqa: C901
    x_ptr, w_ptr, bias_ptr, meta_ptr, residual_ptr, add_ptr, alpha_ptr, out_ptr, active_ptr, scale, slope,
    x_size, out_size, in_rate, in_extra, out_rate, out_extra, taps, dilation, stride, pad, crop,
    CHANNELS: tl.constexpr, FEATURES: tl.constexpr, UP: tl.constexpr, REFLECT: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    RESIDUAL: tl.constexpr, ADD: tl.constexpr, STORE: tl.constexpr, ACTIVE: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = (convolution + residual + add) * scale; active = activation(out). Grid: (position tiles, outputs / BLOCK, rows).

    x [rows, x_size, CHANNELS] with in_rate * frames + in_extra real positions; out, active, residual, add [rows, out_size, FEATURES].
    Tap k of position t reads position stride * t + dilation * k - pad. w: [outputs, taps, CHANNELS].
    UP = 0: outputs = FEATURES. UP = r > 0: transposed, outputs = r * FEATURES, output (t, p, feature) is position r t + p - crop;
    with REFLECT all positions move up by one and position 0 repeats position 2 (the reflected position before an inverse STFT).
    STORE: write out. ACTIVE: "" | "snake" | "leaky" | "elu".
    """
    row = tl.program_id(2).to(tl.int64)
    frames = tl.load(meta_ptr + row * META + META_FRAMES)
    in_length = frames * in_rate + in_extra
    out_length = frames * out_rate + out_extra
    first = tl.program_id(0) * TILE
    if UP:
        if first > in_length:
            return
    else:
        if first >= out_length:
            return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, STEP)
    x_ptr += row * x_size * CHANNELS
    total = tl.zeros([TILE, BLOCK], tl.float32)
    for at in tl.range(0, taps * CHANNELS, STEP, num_stages=STAGES):
        tap = at // CHANNELS
        source = position * stride + (tap * dilation - pad)
        is_real = (source >= 0) & (source < in_length)
        here = x_ptr + source * CHANNELS + tl.multiple_of(at - tap * CHANNELS, STEP)
        x = tl.load(here[:, None] + inner[None, :], mask=is_real[:, None], other=0.0)
        w = tl.load(w_ptr + output[None, :] * (taps * CHANNELS) + (at + inner)[:, None])
        total = tl.dot(x, w, total, input_precision=PRECISION)
    feature = output % FEATURES
    total += tl.load(bias_ptr + feature).to(tl.float32)[None, :]
    if UP:
        position = position * UP + (tl.program_id(1) * BLOCK) // FEATURES - crop
        exists = (position >= 0) & (position < in_length * UP)
        position += REFLECT
    else:
        exists = position < out_length
    place = (row * out_size + position)[:, None] * FEATURES + feature[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + place, mask=exists[:, None], other=0.0).to(tl.float32)
    if ADD:
        total += tl.load(add_ptr + place, mask=exists[:, None], other=0.0).to(tl.float32)
    total *= scale
    if STORE:
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=exists[:, None])
        if REFLECT:
            reflected = (position == 2)[:, None] & exists[:, None]
            tl.store(out_ptr + (place - 2 * FEATURES), total.to(out_ptr.dtype.element_ty), mask=reflected)
    if ACTIVE == "snake":
        total = snake(total, tl.load(alpha_ptr + feature)[None, :])
    elif ACTIVE == "leaky":
        total = leaky(total, slope)
    elif ACTIVE == "elu":
        total = tl.where(total > 0, total, tl.exp(total) - 1.0)
    if ACTIVE != "":
        tl.store(active_ptr + place, total.to(active_ptr.dtype.element_ty), mask=exists[:, None])


@triton.jit(do_not_specialize=["size", "rate", "extra"])
def activate(
    x_ptr, alpha_ptr, meta_ptr, first_ptr, second_ptr, third_ptr, size, rate, extra,
    CHANNELS: tl.constexpr, COPIES: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Snake of x [rows, size, CHANNELS] with up to three alphas [COPIES, CHANNELS], each to its own memory.

    Grid: (position tiles, rows).
    """
    row = tl.program_id(1).to(tl.int64)
    length = tl.load(meta_ptr + row * META + META_FRAMES) * rate + extra
    first = tl.program_id(0) * TILE
    if first >= length:
        return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    exists = (position < length)[:, None]
    place = (row * size + position)[:, None] * CHANNELS + channel[None, :]
    x = tl.load(x_ptr + place, mask=exists, other=0.0).to(tl.float32)
    for copy in tl.static_range(COPIES):
        alpha = tl.load(alpha_ptr + copy * CHANNELS + channel)[None, :]
        out_ptr = first_ptr if copy == 0 else (second_ptr if copy == 1 else third_ptr)
        tl.store(out_ptr + place, snake(x, alpha).to(out_ptr.dtype.element_ty), mask=exists)
