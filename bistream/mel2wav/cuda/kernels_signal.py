# mypy: ignore-errors
"""Source signal, STFT, inverse STFT and session state of the vocoder. All float32.

meta: int32 [rows, 16], see ``rows.pack_rows``. Sessions keep their state in slots: ``slot_mel`` [slots, STATE, BINS],
``slot_source`` [slots, STATE * 480], ``slot_withheld`` [slots, OVERLAP * 480], with STATE and OVERLAP in frames.
"""

import triton
import triton.language as tl

from bistream.mel2wav.cuda.kernels_conv import META, begin

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
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit(do_not_specialize=["new_stride", "size"])
def gather_mel(
    slot_mel_ptr, new_ptr, new_stride, meta_ptr, mel_ptr, half_ptr, size,
    STATE: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Kept and new frames of each row side by side: mel float32 and half 16 bit [rows, size, BINS]. Grid: (tiles, rows).

    new: [BINS, new_stride], the new frames of all rows after one another.
    """
    row = tl.program_id(1)
    meta = meta_ptr + row * META
    frames = tl.load(meta + FRAMES)
    first = tl.program_id(0) * TILE
    if first >= frames:
        return
    begin(PDL)
    context = tl.load(meta + CONTEXT)
    frame = first + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    is_bin = (column < BINS)[None, :]
    is_kept = (frame < context)[:, None]
    kept = slot_mel_ptr + (tl.load(meta + SLOT).to(tl.int64) * STATE + frame)[:, None] * BINS + column[None, :]
    new = new_ptr + column[None, :].to(tl.int64) * new_stride + (tl.load(meta + NEW_COLUMN) + frame - context)[:, None]
    value = tl.load(kept, mask=is_kept & is_bin, other=0.0)
    value += tl.load(new, mask=(frame < frames)[:, None] & ~is_kept & is_bin, other=0.0)
    place = (row * size + frame)[:, None] * BINS + column[None, :]
    exists = (frame < frames)[:, None] & is_bin
    tl.store(mel_ptr + place, value, mask=exists)
    tl.store(half_ptr + place, value.to(half_ptr.dtype.element_ty), mask=exists)


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


@triton.jit(do_not_specialize=["post_size", "audio_size"])
def invert(
    post_ptr, basis_ptr, interior_ptr, left_ptr, right_ptr, fade_in_ptr, fade_out_ptr, withheld_ptr, meta_ptr, audio_ptr,
    post_size, audio_size, limit, max_magnitude,
    SAMPLES: tl.constexpr, HOP: tl.constexpr, SPAN: tl.constexpr, BINS: tl.constexpr, POST: tl.constexpr, FADE: tl.constexpr,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Log magnitude and phase [rows, post_size, POST] -> audio, faded in from what was withheld. Grid: (tiles of hops, rows).

    basis: [2, BINS padded to 16, SPAN]. FADE: samples of the overlap.
    """
    EDGE: tl.constexpr = SPAN // 2 - HOP
    row = tl.program_id(1).to(tl.int64)
    meta = meta_ptr + row * META
    samples = tl.load(meta + FRAMES) * SAMPLES
    first = tl.program_id(0) * TILE
    if first * HOP >= samples:
        return
    begin(PDL)
    hop = first + tl.arange(0, TILE)
    phase_bin = tl.arange(0, 16)
    inner = tl.arange(0, 16)
    is_bin = (phase_bin < BINS)[None, :]
    total = tl.zeros([TILE, 16], tl.float32)
    for back in tl.static_range(SPAN // HOP):
        window = hop + (SPAN // 2) // HOP - back
        exists = ((window >= 0) & (window <= samples // HOP))[:, None] & is_bin
        line = post_ptr + (row * post_size + window)[:, None] * POST + phase_bin[None, :]
        magnitude = tl.minimum(tl.exp(tl.load(line, mask=exists, other=0.0)), max_magnitude)
        magnitude = tl.where(exists, magnitude, 0.0)
        phase = tl.sin(tl.load(line + BINS, mask=exists, other=0.0))
        place = phase_bin[:, None] * SPAN + inner[None, :] + back * HOP
        mask = (inner < HOP)[None, :] & (phase_bin < BINS)[:, None]
        real = tl.load(basis_ptr + place, mask=mask, other=0.0)
        imaginary = tl.load(basis_ptr + 16 * SPAN + place, mask=mask, other=0.0)
        total = tl.dot(magnitude * tl.cos(phase), real, total, input_precision="ieee")
        total = tl.dot(magnitude * tl.sin(phase), imaginary, total, input_precision="ieee")
    position = hop[:, None] * HOP + inner[None, :]
    is_sample = (inner < HOP)[None, :] & (position < samples)
    total /= tl.load(interior_ptr + inner, mask=inner < HOP, other=1.0)[None, :]
    total *= tl.load(left_ptr + position, mask=is_sample & (position < EDGE), other=1.0)
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
