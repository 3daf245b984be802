# mypy: ignore-errors
"""Session state: gathered into the rows of a call at its beginning, stored for the next call at its end. All float32.

meta: int32 [rows, META_NUMBERS], see ``batch.MetaField``. Sessions keep their state in slots: ``slot_mel`` [slots, STATE, BINS],
``slot_source`` [slots, STATE * 480], ``slot_withheld`` [slots, OVERLAP * 480], with STATE and OVERLAP in frames.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import begin
from bistream.mel2wav.cuda.batch import META_NUMBERS, MetaField, RateField

META = tl.constexpr(META_NUMBERS)
SLOT = tl.constexpr(int(MetaField.SLOT))
FRAMES = tl.constexpr(int(MetaField.FRAMES))
CONTEXT = tl.constexpr(int(MetaField.CONTEXT))
OVERLAP = tl.constexpr(int(MetaField.OVERLAP))
NEW_COLUMN = tl.constexpr(int(MetaField.NEW_COLUMN))
OUT_FRAME = tl.constexpr(int(MetaField.OUT_FRAME))
EMITTED = tl.constexpr(int(MetaField.EMITTED))
NEXT_FIRST = tl.constexpr(int(MetaField.NEXT_FIRST))
BEFORE = tl.constexpr(int(MetaField.BEFORE))
RATE_NUMBERS = tl.constexpr(len(RateField))
RATE_RATE = tl.constexpr(int(RateField.RATE))
RATE_EXTRA = tl.constexpr(int(RateField.EXTRA))
RATE_GAP = tl.constexpr(int(RateField.GAP))
RATE_BEGIN = tl.constexpr(int(RateField.BEGIN))


@triton.jit(do_not_specialize=["new_stride", "size", "split"])
def gather_mel(
    slot_mel_ptr, new_ptr, new_stride, meta_ptr, mel_ptr, parts_ptr, size, split,
    STATE: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Kept and new frames of each row, joined: float32 [rows, size, BINS], and as two 16-bit parts. Grid: (tiles, rows).

    new: [BINS, new_stride], the new frames of all rows, concatenated. parts: [2 * split, WIDTH], values rounded to 16 bit, then the
    remainders; rows concatenated with GAP zeros around each one.
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

    rates: int32 [rates, 4], see ``batch.RateField``.
    """
    row = tl.program_id(1)
    rates_ptr += tl.program_id(2) * RATE_NUMBERS
    frames = tl.load(meta_ptr + row * META + FRAMES)
    rate = tl.load(rates_ptr + RATE_RATE)
    gap = tl.load(rates_ptr + RATE_GAP)
    length = frames * rate + tl.load(rates_ptr + RATE_EXTRA)
    first = tl.program_id(0) * TILE - gap
    if (first >= length + gap) | (frames == 0):
        return
    begin(PDL)
    position = first + tl.arange(0, TILE)
    start = tl.load(rates_ptr + RATE_BEGIN) + tl.load(meta_ptr + row * META + BEFORE) * rate + (row + 1) * gap
    is_real = (position >= 0) & (position < length)
    # only up to the neighbouring rows: extra positions lie in the gap after each row
    in_reach = (position >= length - frames * rate - gap) & (position < frames * rate + gap)
    tl.store(real_ptr + start + position, is_real.to(tl.int8), mask=in_reach)


@triton.jit(do_not_specialize=["size"])
def keep_state(
    mel_ptr, source_ptr, audio_ptr, meta_ptr, slot_mel_ptr, slot_source_ptr, slot_withheld_ptr, out_ptr, size,
    STATE: tl.constexpr, OVERLAP_FRAMES: tl.constexpr, BINS: tl.constexpr, BIN_WIDTH: tl.constexpr, SAMPLES: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Due audio to ``out`` (rows concatenated), and the next call's state to the slots. Grid: (frames, rows)."""
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
