# mypy: ignore-errors
"""STFT of the source, and overlap-add of the inverse STFT's windows. All float32.

meta: int32 [rows, META_NUMBERS], see ``batch.MetaField``.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import begin
from bistream.mel2wav.cuda.batch import META_NUMBERS, MetaField

META = tl.constexpr(META_NUMBERS)
SLOT = tl.constexpr(int(MetaField.SLOT))
FRAMES = tl.constexpr(int(MetaField.FRAMES))
OVERLAP = tl.constexpr(int(MetaField.OVERLAP))
FADES = tl.constexpr(int(MetaField.FADES))


@triton.jit(do_not_specialize=["source_size", "out_size"])
def transform(
    source_ptr, basis_ptr, meta_ptr, out_ptr, source_size, out_size,
    SAMPLES: tl.constexpr, HOP: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """STFT with SPAN samples per window, reflected at the row's ends: 16-bit [rows, out_size, WIDTH]. Grid: (tiles, rows).

    basis: [SPAN, WIDTH], real parts, imaginary parts, then zeros.
    """
    row = tl.program_id(1).to(tl.int64)
    samples = tl.load(meta_ptr + row * META + FRAMES) * SAMPLES
    first = tl.program_id(0) * TILE
    if first > samples // HOP:
        return
    begin(PDL)
    window = first + tl.arange(0, TILE)
    inner = tl.arange(0, SPAN)
    column = tl.arange(0, WIDTH)
    index = tl.abs(window[:, None] * HOP + inner[None, :] - SPAN // 2)
    index = tl.where(index >= samples, 2 * (samples - 1) - index, index)
    x = tl.load(source_ptr + row * source_size + tl.maximum(index, 0), mask=(window <= samples // HOP)[:, None], other=0.0)
    basis = tl.load(basis_ptr + inner[:, None] * WIDTH + column[None, :])
    spectrum = tl.dot(x, basis, input_precision="ieee")
    place = (row * out_size + window)[:, None] * WIDTH + column[None, :]
    tl.store(out_ptr + place, spectrum.to(out_ptr.dtype.element_ty), mask=(window <= samples // HOP)[:, None])


@triton.jit(do_not_specialize=["windows_size", "audio_size"])
def overlap_add(
    windows_ptr, interior_ptr, left_ptr, right_ptr, fade_in_ptr, fade_out_ptr, withheld_ptr, meta_ptr, audio_ptr,
    windows_size, audio_size, limit,
    SAMPLES: tl.constexpr, HOP: tl.constexpr, SPAN: tl.constexpr, FADE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Windows' audio [rows, windows_size, SPAN] -> audio, faded in from the withheld audio. Grid: (tiles of samples, rows).

    FADE: samples of the overlap.
    """
    EDGE: tl.constexpr = SPAN // 2 - HOP
    row = tl.program_id(1).to(tl.int64)
    meta = meta_ptr + row * META
    samples = tl.load(meta + FRAMES) * SAMPLES
    first = tl.program_id(0) * TILE
    if first >= samples:
        return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    hop, inner = position // HOP, position % HOP
    is_sample = position < samples
    total = tl.zeros([TILE], tl.float32)
    for back in tl.static_range(SPAN // HOP):
        window = hop + (SPAN // 2) // HOP - back
        exists = is_sample & (window >= 0) & (window <= samples // HOP)
        total += tl.load(windows_ptr + (row * windows_size + window) * SPAN + back * HOP + inner, mask=exists, other=0.0)
    total /= tl.load(interior_ptr + inner)
    total *= tl.load(left_ptr + position, mask=position < EDGE, other=1.0)
    from_end = samples - 1 - position
    total *= tl.load(right_ptr + from_end, mask=is_sample & (from_end < EDGE), other=1.0)
    total = tl.minimum(tl.maximum(total, -limit), limit)
    into = position - tl.load(meta + OVERLAP) * SAMPLES
    is_fading = is_sample & (into >= 0) & (into < FADE) & (tl.load(meta + FADES) != 0)
    old = tl.load(withheld_ptr + tl.load(meta + SLOT).to(tl.int64) * FADE + into, mask=is_fading, other=0.0)
    fade_in = tl.load(fade_in_ptr + into, mask=is_fading, other=1.0)
    fade_out = tl.load(fade_out_ptr + into, mask=is_fading, other=0.0)
    tl.store(audio_ptr + row * audio_size + position, total * fade_in + old * fade_out, mask=is_sample)
