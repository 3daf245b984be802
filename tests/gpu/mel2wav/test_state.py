"""Loading and storing the state of sessions. Kernels: ``gather_mel``, ``mark_real``, ``keep_state``."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.checks import INTERPRETED, SENTINEL, Draw, assert_untouched, poison

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.mel2wav.bench import BATCHES, DTYPE, MEL_BINS, STATE_FRAMES, VOCODER_OVERLAP_FRAMES, VocoderBench, launch
from tests.gpu.mel2wav.bench import SAMPLES_PER_MEL_FRAME as SAMPLES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

batches = pytest.mark.parametrize("batch", sorted(BATCHES))


@batches
def test_gather_mel_and_mark_real(batch: str) -> None:
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    space, rate = bench.space, bench.space.rates[0]
    poison(space.real)
    bench.slots.mel.copy_(draw.normal(*bench.slots.mel.shape))
    new = sum(plan.frames - plan.context for plan in bench.plans)
    space.new_mel[:, :new] = draw.normal(MEL_BINS, new)
    launch(bench.call._gather)

    mel = bench.rows_of(space.mel, bench.bucket.frames)
    split = bench.call._capacities[0]
    high = torch.zeros(bench.extent(rate), space.mel_parts.shape[1], dtype=DTYPE, device=mel.device)
    low, column = high.clone(), 0
    for row, (plan, (start, length)) in enumerate(zip(bench.plans, bench.starts(rate), strict=True)):
        kept = bench.slots.mel[plan.slot, : plan.context]
        value = torch.cat([kept, space.new_mel[:, column : column + plan.frames - plan.context].T])
        column += plan.frames - plan.context
        assert torch.equal(mel[row, : plan.frames], value)
        assert_untouched(mel[row, plan.frames :])
        high[start : start + length, :MEL_BINS] = value.to(DTYPE)
        low[start : start + length, :MEL_BINS] = (value - value.to(DTYPE).float()).to(DTYPE)
    assert_untouched(mel[len(bench.plans) :])
    assert torch.equal(space.mel_parts[: len(high)], high) and torch.equal(space.mel_parts[split : split + len(high)], low)
    assert_untouched(space.mel_parts[len(high) : split], space.mel_parts[split + len(high) :])

    for real, rate in zip(bench.call._reals, space.rates, strict=True):
        expected = torch.full_like(real, SENTINEL)
        expected[rate.extra : bench.extent(rate)] = 0
        for start, length in bench.starts(rate):
            expected[start : start + length] = 1
        assert torch.equal(real, expected)


@batches
def test_keep_state(batch: str) -> None:
    """Audio that is due and the state for the next call, from audio as ``overlap_add`` wrote it."""
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    space, slots, frames = bench.space, bench.slots, bench.bucket.frames
    bench.fill_results(draw)
    withheld = slots.withheld.clone()
    launch(bench.call._finish)

    mel = bench.rows_of(space.mel, frames)
    source, audio = (bench.rows_of(tensor, frames * SAMPLES) for tensor in (space.source, space.audio))
    due, kept_mel, kept_source = (torch.full_like(tensor, torch.nan) for tensor in (space.out, slots.mel, slots.source))
    kept_withheld = withheld.clone()
    for row, plan in enumerate(bench.plans):
        samples = plan.frames * SAMPLES
        assert audio[row, :samples].isfinite().all()
        emitted = slice(plan.overlap * SAMPLES, plan.emitted * SAMPLES)
        begin = plan.out_frame * SAMPLES
        due[begin : begin + emitted.stop - emitted.start] = audio[row, emitted]
        rest = audio[row, emitted.stop : min(samples, emitted.stop + VOCODER_OVERLAP_FRAMES * SAMPLES)]
        kept_withheld[plan.slot, : len(rest)] = rest
        state = slice(plan.next_first, min(plan.frames, plan.next_first + STATE_FRAMES))
        kept_mel[plan.slot, : state.stop - state.start] = mel[row, state]
        kept_source[plan.slot, : (state.stop - state.start) * SAMPLES] = source[row, state.start * SAMPLES : state.stop * SAMPLES]
    for found, expected in ((space.out, due), (slots.withheld, kept_withheld), (slots.mel, kept_mel), (slots.source, kept_source)):
        assert torch.equal(found.isnan(), expected.isnan()), "a kernel wrote outside its output, or left part of it unwritten"
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())
