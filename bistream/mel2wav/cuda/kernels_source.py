# mypy: ignore-errors
"""The source signal: f0, phases, harmonics and noise. All float32.

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
FIRST_FRAME = tl.constexpr(int(MetaField.FIRST_FRAME))
STARTS = tl.constexpr(int(MetaField.STARTS))
KEPT = tl.constexpr(int(MetaField.KEPT_SOURCE))
EMITTED = tl.constexpr(int(MetaField.EMITTED))
KEY_LOW = tl.constexpr(int(MetaField.KEY_LOW))
KEY_HIGH = tl.constexpr(int(MetaField.KEY_HIGH))
BEFORE = tl.constexpr(int(MetaField.BEFORE))

TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit(do_not_specialize=["size", "split"])
def classify_f0(
    parts_ptr, weight_ptr, bias_ptr, meta_ptr, f0_ptr, size, split,
    WIDTH: tl.constexpr, GAP: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """f0 in Hz [rows, size] from the f0 predictor's last activations, parts [2 * split, WIDTH]. Grid: (tiles, rows)."""
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

    The phase of the last emitted frame goes to the slot; it starts at zero before the first output, whatever the slot holds.
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
    """Two 32-bit words -> radius and angle of the Box-Muller transform, as in ``mel2wav.noise``."""
    first = ((radius_word >> 8).to(tl.int32) + 1).to(tl.float32) * 5.9604644775390625e-08
    second = ((angle_word >> 8).to(tl.int32) + 1).to(tl.float32) * 5.9604644775390625e-08
    return tl.sqrt(-2.0 * tl.log(first)), TWO_PI * second


@triton.jit(do_not_specialize=["size"])
def make_source(
    f0_ptr, advance_ptr, phase_ptr, weight_ptr, bias_ptr, gain_ptr, slot_source_ptr, meta_ptr, source_ptr, size,
    alpha, sigma, threshold, HARMONICS: tl.constexpr, STATE: tl.constexpr, SAMPLES: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Harmonic source [rows, size * SAMPLES]; its first samples are the kept ones. Grid: (frames, rows).

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
