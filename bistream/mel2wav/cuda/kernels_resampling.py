# mypy: ignore-errors
"""Convolutions that change the rate, on rows of different lengths: transposed ones up, strided ones down to a stage's rate.

Activations are 16-bit [positions, channels]. Row r begins at position r * row_step + frames before it * frame_step + offset: rows
of one size (frame_step 0), or as ``kernels_convolution`` expects them. Positions beyond a row's end are never read; they count as
zero. A transposed convolution of stride r is r convolutions, one for each position modulo r, whose outputs interleave.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import fast_sine, snake
from bistream.gpu.dependent_launch import begin
from bistream.mel2wav.cuda.batch import META_NUMBERS, MetaField

META = tl.constexpr(META_NUMBERS)
FRAMES = tl.constexpr(int(MetaField.FRAMES))
BEFORE = tl.constexpr(int(MetaField.BEFORE))


_SIZES = [
    "in_rate", "in_extra", "in_row", "in_frame", "in_offset", "out_rate", "out_extra", "out_row", "out_frame", "out_offset",
    "taps", "dilation", "stride", "pad", "crop",
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def convolve(
    x_ptr, w_ptr, bias_ptr, meta_ptr, alpha_ptr, out_ptr, active_ptr,
    in_rate, in_extra, in_row, in_frame, in_offset, out_rate, out_extra, out_row, out_frame, out_offset, taps, dilation, stride, pad, crop,
    max_magnitude,
    CHANNELS: tl.constexpr, FEATURES: tl.constexpr, UP: tl.constexpr, REFLECT: tl.constexpr, GAP: tl.constexpr, SPAN: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = convolution. Grid: (position tiles, outputs / BLOCK, rows).

    x [positions, CHANNELS], in_rate * frames + in_extra real ones in a row; out, active [positions, FEATURES] likewise.
    Tap k of position t reads position stride * t + dilation * k - pad. w: [outputs, taps, CHANNELS].
    UP = 0: outputs = FEATURES. UP = r > 0: transposed, outputs = r * FEATURES, output (t, p, feature) is position r t + p - crop;
    with REFLECT all positions move up by one and position 0 repeats position 2 (the reflected position before an inverse STFT).
    GAP > 0: also snake(out) to ``active``, and zeros to GAP positions around each row of it.
    SPAN > 0: half of the features are log magnitudes, half the arcsines of phases; out [positions, SPAN] is the windows' audio, from
    the basis [FEATURES, SPAN] in ``alpha``: real parts, then imaginary parts.
    """
    row = tl.program_id(2)
    frames = tl.load(meta_ptr + row * META + FRAMES)
    before = tl.load(meta_ptr + row * META + BEFORE)
    in_length = frames * in_rate + in_extra
    out_length = frames * out_rate + out_extra
    first = tl.program_id(0) * TILE - GAP
    if UP:
        if first > in_length:
            return
    else:
        if first >= out_length + GAP:
            return
    if frames == 0:
        return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, STEP)
    x_ptr += (row * in_row + before * in_frame + in_offset).to(tl.int64) * CHANNELS
    total = tl.zeros([TILE, BLOCK], tl.float32)
    for at in tl.range(0, taps * CHANNELS, STEP, num_stages=STAGES):
        tap = at // CHANNELS
        source = position * stride + (tap * dilation - pad)
        is_real = (source >= 0) & (source < in_length)
        here = x_ptr + source * CHANNELS + tl.multiple_of(at - tap * CHANNELS, STEP)
        x = tl.load(here[:, None] + inner[None, :], mask=is_real[:, None], other=0.0)
        w = tl.load(w_ptr + output[None, :] * (taps * CHANNELS) + (at + inner)[:, None])
        total = tl.dot(x, w, total)
    feature = output % FEATURES
    total += tl.load(bias_ptr + feature).to(tl.float32)[None, :]
    if UP:
        position = position * UP + (tl.program_id(1) * BLOCK) // FEATURES - crop
        exists = (position >= 0) & (position < in_length * UP)
        position += REFLECT
    else:
        exists = (position >= 0) & (position < out_length)
    start = (row * out_row + before * out_frame + out_offset).to(tl.int64)
    place = (start + position)[:, None] * FEATURES + feature[None, :]
    if SPAN:
        magnitude, phase = tl.split(tl.permute(tl.reshape(total, [TILE, 2, FEATURES // 2]), [0, 2, 1]))
        magnitude = tl.minimum(tl.exp(magnitude), max_magnitude)
        phase = fast_sine(phase)
        parts = tl.join(magnitude * fast_sine(phase + 1.5707963267948966), magnitude * fast_sine(phase))
        spectrum = tl.reshape(tl.permute(parts, [0, 2, 1]), [TILE, FEATURES])
        sample = tl.arange(0, SPAN)
        basis = tl.load(alpha_ptr + tl.arange(0, FEATURES)[:, None] * SPAN + sample[None, :])
        total = tl.dot(spectrum, basis, input_precision="ieee")
        place = (start + position)[:, None] * SPAN + sample[None, :]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=exists[:, None])
    if REFLECT:
        reflected = (position == 2)[:, None] & exists[:, None]
        tl.store(out_ptr + (place - 2 * FEATURES), total.to(out_ptr.dtype.element_ty), mask=reflected)
    if GAP:
        # only up to the neighbouring rows: ``out_extra`` positions lie in the gap after each row
        in_reach = (position >= out_extra - GAP) & (position < frames * out_rate + GAP)
        total = tl.where(exists[:, None], snake(total, tl.load(alpha_ptr + feature)[None, :]), 0.0)
        tl.store(active_ptr + place, total.to(active_ptr.dtype.element_ty), mask=in_reach[:, None])
