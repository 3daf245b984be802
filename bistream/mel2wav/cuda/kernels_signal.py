# mypy: ignore-errors
"""Source signal, STFT, inverse STFT and session state of the vocoder. All float32.

meta: int32 [rows, 16], see ``rows.pack_rows``. Sessions keep their state in slots: ``slot_mel`` [slots, STATE, BINS],
``slot_source`` [slots, STATE * 480], ``slot_withheld`` [slots, OVERLAP * 480], with STATE and OVERLAP in frames.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import begin
from bistream.mel2wav.cuda.kernels_conv import META

SLOT = tl.constexpr(0)
FRAMES = tl.constexpr(1)
CONTEXT = tl.constexpr(2)
OVERLAP = tl.constexpr(4)
FIRST_FRAME = tl.constexpr(5)
STARTS = tl.constexpr(6)
FADES = tl.constexpr(7)
KEPT = tl.constexpr(8)
NEW_COLUMN = tl.constexpr(9)
OUT_FRAME = tl.constexpr(10)
EMITTED = tl.constexpr(11)
NEXT_FIRST = tl.constexpr(12)
KEY_LOW = tl.constexpr(13)
KEY_HIGH = tl.constexpr(14)
BEFORE = tl.constexpr(15)
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit(do_not_specialize=["new_stride", "size", "split"])
def gather_mel(
    slot_mel_ptr, new_ptr, new_stride, meta_ptr, mel_ptr, parts_ptr, size, split,
    STATE: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Kept and new frames of each row side by side: float32 [rows, size, BINS], and in two parts of 16 bit. Grid: (tiles, rows).

    new: [BINS, new_stride], the new frames of all rows after one another. parts: [2 * split, WIDTH], what 16 bit keep, then what they
    lose; rows after one another with GAP zeros around each one.
    """
    row = tl.program_id(1)
    meta = meta_ptr + row * META
    frames = tl.load(meta + FRAMES)
    first = tl.program_id(0) * TILE - GAP
    if (first >= frames + GAP) | (frames == 0):
        return
    begin(PDL)
    context = tl.load(meta + CONTEXT)
    frame = first + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    is_bin = (column < BINS)[None, :]
    is_kept = ((frame >= 0) & (frame < context))[:, None]
    is_new = ((frame >= context) & (frame < frames))[:, None]
    kept = slot_mel_ptr + (tl.load(meta + SLOT).to(tl.int64) * STATE + frame)[:, None] * BINS + column[None, :]
    new = new_ptr + column[None, :].to(tl.int64) * new_stride + (tl.load(meta + NEW_COLUMN) + frame - context)[:, None]
    value = tl.load(kept, mask=is_kept & is_bin, other=0.0)
    value += tl.load(new, mask=is_new & is_bin, other=0.0)
    tl.store(mel_ptr + (row * size + frame)[:, None] * BINS + column[None, :], value, mask=(is_kept | is_new) & is_bin)
    place = (tl.load(meta + BEFORE) + (row + 1) * GAP + frame)[:, None] * WIDTH + column[None, :]
    high = value.to(parts_ptr.dtype.element_ty)
    mask = (frame < frames + GAP)[:, None]
    tl.store(parts_ptr + place, high, mask=mask)
    tl.store(parts_ptr + split * WIDTH + place, (value - high.to(tl.float32)).to(parts_ptr.dtype.element_ty), mask=mask)


@triton.jit
def mark_real(meta_ptr, real_ptr, rates_ptr, TILE: tl.constexpr, PDL: tl.constexpr):
    """int8, 1 where a row has a position and 0 in the gaps around it, for every rate. Grid: (tiles, rows, rates).

    rates: int32 [rates, 4]: rate, positions of a row beyond it, gap, first position of the rate in ``real``.
    """
    row = tl.program_id(1)
    rates_ptr += tl.program_id(2) * 4
    frames = tl.load(meta_ptr + row * META + FRAMES)
    rate = tl.load(rates_ptr)
    gap = tl.load(rates_ptr + 2)
    length = frames * rate + tl.load(rates_ptr + 1)
    first = tl.program_id(0) * TILE - gap
    if (first >= length + gap) | (frames == 0):
        return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    start = tl.load(rates_ptr + 3) + tl.load(meta_ptr + row * META + BEFORE) * rate + (row + 1) * gap
    is_real = (position >= 0) & (position < length)
    # no further than to the other rows: positions beyond the rate lie in the gap behind each row
    in_reach = (position >= length - frames * rate - gap) & (position < frames * rate + gap)
    tl.store(real_ptr + start + position, is_real.to(tl.int8), mask=in_reach)


@triton.jit(do_not_specialize=["size", "split"])
def classify_f0(
    parts_ptr, weight_ptr, bias_ptr, meta_ptr, f0_ptr, size, split,
    WIDTH: tl.constexpr, GAP: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """f0 in Hz [rows, size] of the f0 predictor's last activations, parts [2 * split, WIDTH]. Grid: (tiles, rows)."""
    row = tl.program_id(1)
    frames = tl.load(meta_ptr + row * META + FRAMES)
    first = tl.program_id(0) * TILE
    if first >= frames:
        return
    begin(PDL)
    frame = first + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    exists = (frame < frames)[:, None]
    place = (tl.load(meta_ptr + row * META + BEFORE) + (row + 1) * GAP + frame)[:, None] * WIDTH + column[None, :]
    x = tl.load(parts_ptr + place, mask=exists, other=0.0).to(tl.float32)
    x += tl.load(parts_ptr + split * WIDTH + place, mask=exists, other=0.0).to(tl.float32)
    f0 = tl.abs(tl.sum(x * tl.load(weight_ptr + column)[None, :], axis=1) + tl.load(bias_ptr))
    tl.store(f0_ptr + row * size + frame, f0, mask=frame < frames)


@triton.jit(do_not_specialize=["size"])
def follow_phase(
    f0_ptr, overtones_ptr, meta_ptr, slot_phase_ptr, advance_ptr, phase_ptr, size, cycles_per_hertz,
    HARMONICS: tl.constexpr, SAMPLES: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``HarmonicSource.frame_phase``: advance and phase [rows, HARMONICS, size] of f0 [rows, size]. Grid: (HARMONICS, rows).

    The phase of the last emitted frame goes to the slot; before anything is out it begins at zero, whoever had the slot before.
    """
    harmonic = tl.program_id(0)
    row = tl.program_id(1)
    meta = meta_ptr + row * META
    frames = tl.load(meta + FRAMES)
    if frames == 0:
        return
    begin(PDL)
    frame = tl.arange(0, WIDTH)
    exists = frame < frames
    overlap = tl.load(meta + OVERLAP)
    emitted = tl.load(meta + EMITTED)
    f0 = tl.load(f0_ptr + row * size + frame, mask=exists, other=0.0)
    advance = f0 * tl.load(overtones_ptr + harmonic) * cycles_per_hertz
    advance -= tl.floor(advance)
    exact = advance.to(tl.float64)
    kept = slot_phase_ptr + tl.load(meta + SLOT) * HARMONICS + harmonic
    start = tl.where(overlap > 0, tl.load(kept), 0.0) - tl.sum(tl.where(frame < overlap, exact, 0.0)) * SAMPLES
    phase = start + tl.cumsum(exact) * SAMPLES
    phase -= tl.floor(phase)
    line = (row * HARMONICS + harmonic) * size + frame
    tl.store(advance_ptr + line, advance, mask=exists)
    tl.store(phase_ptr + line, phase.to(tl.float32), mask=exists)
    tl.store(kept, tl.sum(tl.where(frame == emitted - 1, phase, 0.0)), mask=emitted > overlap)


@triton.jit
def normal_pair(radius_word, angle_word):
    """Two 32-bit words -> radius and angle of Box and Muller, as ``mel2wav.noise``."""
    first = ((radius_word >> 8).to(tl.int32) + 1).to(tl.float32) * 5.9604644775390625e-08
    second = ((angle_word >> 8).to(tl.int32) + 1).to(tl.float32) * 5.9604644775390625e-08
    return tl.sqrt(-2.0 * tl.log(first)), TWO_PI * second


@triton.jit(do_not_specialize=["size"])
def make_source(
    f0_ptr, advance_ptr, phase_ptr, weight_ptr, bias_ptr, gain_ptr, slot_source_ptr, meta_ptr, source_ptr, size,
    alpha, sigma, threshold, HARMONICS: tl.constexpr, STATE: tl.constexpr, SAMPLES: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Harmonic source [rows, size * SAMPLES]; its first samples are those kept. Grid: (frames, rows).

    f0: [rows, size]; advance (cycles per sample) and phase (cycles at the frame's centre): float32 [rows, HARMONICS, size].
    """
    row = tl.program_id(1)
    frame = tl.program_id(0)
    meta = meta_ptr + row * META
    frames = tl.load(meta + FRAMES)
    if frame >= frames:
        return
    begin(PDL)
    sample = tl.arange(0, WIDTH)
    exists = sample < SAMPLES
    from_centre = sample.to(tl.float32) + (0.5 - SAMPLES // 2)
    is_before = sample < SAMPLES // 2
    stands_before = (frame == 0) & (tl.load(meta + STARTS) != 0)
    stands_after = frame == frames - 1
    following = tl.where(stands_after, frame, frame + 1)
    merged = tl.zeros([WIDTH], tl.float32)
    for harmonic in tl.static_range(HARMONICS):
        line = (row * HARMONICS + harmonic) * size
        before = tl.where(stands_before, 0.0, tl.load(advance_ptr + line + frame))
        after = tl.where(stands_after, 0.0, tl.load(advance_ptr + line + following))
        cycles = tl.load(phase_ptr + line + frame) + tl.where(is_before, before, after) * from_centre
        merged += tl.load(weight_ptr + harmonic) * tl.sin(TWO_PI * cycles)
    number = (tl.load(meta + FIRST_FRAME) + frame) * SAMPLES + sample
    seed = (tl.load(meta + KEY_HIGH).to(tl.uint32).to(tl.uint64) << 32) | tl.load(meta + KEY_LOW).to(tl.uint32).to(tl.uint64)
    zero = number * 0
    word0, word1, word2, word3 = tl.philox(seed, number // 4, zero, zero, zero)
    is_second = number % 4 >= 2
    radius, angle = normal_pair(tl.where(is_second, word2, word0), tl.where(is_second, word3, word1))
    noise = radius * tl.where(number % 2 == 0, tl.cos(angle), tl.sin(angle)) * tl.load(gain_ptr)
    is_voiced = tl.load(f0_ptr + row * size + frame) > threshold
    excitation = tl.where(is_voiced, alpha * merged + sigma * noise, alpha / 3 * noise) + tl.load(bias_ptr)
    grown = tl.exp(2.0 * excitation)
    value = (grown - 1.0) / (grown + 1.0)  # tanh; the argument is small
    is_kept = frame < tl.load(meta + KEPT)
    kept = slot_source_ptr + (tl.load(meta + SLOT).to(tl.int64) * STATE + frame) * SAMPLES + sample
    value = tl.where(is_kept, tl.load(kept, mask=exists & is_kept, other=0.0), value)
    tl.store(source_ptr + (row * size + frame).to(tl.int64) * SAMPLES + sample, value, mask=exists)


@triton.jit(do_not_specialize=["source_size", "out_size"])
def transform(
    source_ptr, basis_ptr, meta_ptr, out_ptr, source_size, out_size,
    SAMPLES: tl.constexpr, HOP: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """STFT with SPAN samples per window, reflected at the row's ends: 16 bit [rows, out_size, WIDTH]. Grid: (tiles, rows).

    basis: [SPAN, WIDTH], real parts, then imaginary parts, zeros behind them.
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
    """Windows' audio [rows, windows_size, SPAN] -> audio, faded in from what was withheld. Grid: (tiles of samples, rows).

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


@triton.jit(do_not_specialize=["size"])
def keep_state(
    mel_ptr, source_ptr, audio_ptr, meta_ptr, slot_mel_ptr, slot_source_ptr, slot_withheld_ptr, out_ptr, size,
    STATE: tl.constexpr, OVERLAP_FRAMES: tl.constexpr, BINS: tl.constexpr, BIN_WIDTH: tl.constexpr, SAMPLES: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Audio that is due to ``out`` (the rows after one another), and the next call's state to the slots. Grid: (frames, rows)."""
    row = tl.program_id(1)
    frame = tl.program_id(0)
    meta = meta_ptr + row * META
    frames = tl.load(meta + FRAMES)
    if frame >= frames:
        return
    begin(PDL)
    sample = tl.arange(0, WIDTH)
    exists = sample < SAMPLES
    slot = tl.load(meta + SLOT).to(tl.int64)
    line = (row * size + frame).to(tl.int64)
    emitted = tl.load(meta + EMITTED)
    audio = tl.load(audio_ptr + line * SAMPLES + sample, mask=exists, other=0.0)
    overlap = tl.load(meta + OVERLAP)
    due = (tl.load(meta + OUT_FRAME) + frame - overlap).to(tl.int64) * SAMPLES + sample
    tl.store(out_ptr + due, audio, mask=exists & (frame >= overlap) & (frame < emitted))
    withheld = (slot * OVERLAP_FRAMES + frame - emitted) * SAMPLES + sample
    tl.store(slot_withheld_ptr + withheld, audio, mask=exists & (frame >= emitted) & (frame - emitted < OVERLAP_FRAMES))
    kept = frame - tl.load(meta + NEXT_FIRST)
    is_kept = (kept >= 0) & (kept < STATE)
    column = tl.arange(0, BIN_WIDTH)
    mel = tl.load(mel_ptr + line * BINS + column, mask=column < BINS, other=0.0)
    tl.store(slot_mel_ptr + (slot * STATE + kept) * BINS + column, mel, mask=(column < BINS) & is_kept)
    source = tl.load(source_ptr + line * SAMPLES + sample, mask=exists, other=0.0)
    tl.store(slot_source_ptr + (slot * STATE + kept) * SAMPLES + sample, source, mask=exists & is_kept)
