"""Source signal, STFT, the end of the inverse STFT, and session state.

Kernels: ``gather_mel``, ``mark_real``, ``classify_f0``, ``follow_phase``, ``make_source``, ``transform``, ``overlap_add``, ``keep_state``.
Where the host launches several in a row, each one's result is compared with what follows from the result of the one before.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from tests.gpu.checks import BOUNDS, SENTINEL, Draw, assert_close, assert_untouched, poison
from tests.gpu.mel2wav.bench import (
    BATCHES,
    CONFIG,
    DTYPE,
    MEL_BINS,
    STATE_FRAMES,
    VOCODER_OVERLAP_FRAMES,
    RowPlan,
    VocoderBench,
    launch,
    normal_noise,
)
from tests.gpu.mel2wav.bench import SAMPLES_PER_MEL_FRAME as SAMPLES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

batches = pytest.mark.parametrize("batch", sorted(BATCHES))
FLOAT32 = BOUNDS[torch.float32]
PHASE_BOUND = 2e-6  # cycles
HARMONICS = CONFIG.nb_harmonics + 1


def turn(difference: Tensor) -> float:
    """The largest difference of phases, in cycles."""
    return float((difference - difference.round()).abs().max()) if difference.numel() else 0.0


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


def check_f0(bench: VocoderBench, parts: list[Tensor]) -> Tensor:
    """f0 [rows, frames] as found."""
    classifier = bench.hift.f0_predictor.classifier
    f0 = bench.rows_of(bench.space.f0, bench.bucket.frames)
    for row, (plan, x) in enumerate(zip(bench.plans, parts, strict=True)):
        exact = (x @ classifier.weight[0].double() + classifier.bias.double()).abs()
        assert_close(f0[row, : plan.frames], exact, 1e-4)  # one frame alone may be near zero, where its terms cancel
        assert_untouched(f0[row, plan.frames :])
    assert_untouched(f0[len(bench.plans) :])
    return f0


def check_phase(bench: VocoderBench, f0: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """advance and phase [rows, harmonics, frames] as found. before: phases of the slots."""
    shape = (bench.bucket.rows, HARMONICS, bench.bucket.frames)
    advance, phase = (tensor[: math.prod(shape)].view(shape) for tensor in (bench.space.advance, bench.space.phase))
    expected = before.clone()
    for row, plan in enumerate(bench.plans):
        frames = slice(0, plan.frames)
        cycles = f0[row, None, frames].double() * bench.hift.m_source.overtones.double() / CONFIG.sampling_rate
        assert turn(advance[row, :, frames].double() - cycles) <= PHASE_BOUND
        total = advance[row, :, frames].double().cumsum(1) * SAMPLES
        if plan.overlap:
            total = before[plan.slot][:, None] + total - total[:, plan.overlap - 1 : plan.overlap]
        assert turn(phase[row, :, frames].double() - total) <= PHASE_BOUND
        if plan.emitted > plan.overlap:
            assert turn(bench.slots.phase[plan.slot] - total[:, plan.emitted - 1]) <= 1e-9
            expected[plan.slot] = bench.slots.phase[plan.slot]
        assert_untouched(advance[row, :, plan.frames :], phase[row, :, plan.frames :])
    assert torch.equal(bench.slots.phase, expected), "the phases of other slots stay"
    assert_untouched(advance[len(bench.plans) :], phase[len(bench.plans) :])
    return advance, phase


def sample_phase(plan: RowPlan, advance: Tensor, phase: Tensor) -> Tensor:
    """Cycles of every sample, float64 [harmonics, frames, SAMPLES]: straight lines between the centres of frames."""
    advance, phase = advance[:, : plan.frames].double(), phase[:, : plan.frames].double()
    offset = torch.arange(SAMPLES, device=phase.device) + 0.5 - SAMPLES // 2
    leading, following = advance.clone(), advance.roll(-1, 1)
    following[:, -1] = 0.0
    if plan.starts:
        leading[:, 0] = 0.0
    slope = torch.where(offset < 0, leading[..., None], following[..., None])
    return phase[..., None] + slope * offset


def check_source(bench: VocoderBench, f0: Tensor, advance: Tensor, phase: Tensor) -> Tensor:
    """Source [rows, samples] as found."""
    module = bench.hift.m_source
    weight, bias = module.l_linear.weight[0].double(), module.l_linear.bias.double()
    source = bench.rows_of(bench.space.source, bench.bucket.frames * SAMPLES)
    for row, plan in enumerate(bench.plans):
        sines = torch.sin(2 * math.pi * sample_phase(plan, advance[row], phase[row]))
        merged = torch.einsum("hfs,h->fs", sines, weight)
        keys = torch.tensor([plan.key], device=f0.device)
        noise = normal_noise(keys, torch.tensor([plan.first_frame * SAMPLES], device=f0.device), plan.frames * SAMPLES)
        noise = noise.double().view(plan.frames, SAMPLES) * weight.norm()
        voiced = (f0[row, : plan.frames] > CONFIG.nsf_voiced_threshold)[:, None]
        exact = torch.where(voiced, CONFIG.nsf_alpha * merged + CONFIG.nsf_sigma * noise, CONFIG.nsf_alpha / 3 * noise)
        exact = torch.tanh(exact + bias)
        found = source[row, : plan.frames * SAMPLES].view(plan.frames, SAMPLES)
        kept = bench.slots.source[plan.slot].view(STATE_FRAMES, SAMPLES)[: plan.kept_source]
        assert torch.equal(found[: plan.kept_source], kept)
        if plan.frames > plan.kept_source:
            assert_close(found[plan.kept_source :], exact[plan.kept_source :], 5e-4)  # sines of up to fifty turns in float32
        assert_untouched(source[row, plan.frames * SAMPLES :])
    assert_untouched(source[len(bench.plans) :])
    return source


def check_spectrum(bench: VocoderBench, source: Tensor) -> None:
    size = bench.bucket.frames * bench.call.rate + 1
    found, bins = bench.rows_of(bench.space.spectrum, size), CONFIG.istft_n_fft + 2
    fourier = copy.deepcopy(bench.hift.fourier).double()
    for row, plan in enumerate(bench.plans):
        samples = plan.frames * SAMPLES
        exact = fourier.stft(source[row, None, :samples].double(), torch.tensor([samples], device=source.device))
        windows = samples // CONFIG.istft_hop_len + 1
        assert_close(found[row, :windows, :bins], exact[0].T, BOUNDS[DTYPE])
        assert not found[row, :windows, bins:].any()
        assert_untouched(found[row, windows:])
    assert_untouched(found[len(bench.plans) :])


@batches
def test_classify_f0_follow_phase_make_source_and_transform(batch: str) -> None:
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    bench.call._f0 = []  # their result is given
    rate, rows, split = bench.space.rates[0], bench.call._f0_rows, bench.call._capacities[0]
    parts = []
    for start, length in bench.starts(rate):
        high, low = draw.normal(length, rows.shape[1], dtype=DTYPE), (draw.normal(length, rows.shape[1]) * 2.0**-12).to(DTYPE)
        rows[start : start + length], rows[split + start : split + start + length] = high, low
        parts.append(high.double() + low.double())
    before = draw.uniform(0.0, 1.0, *bench.slots.phase.shape).double()
    bench.slots.phase.copy_(before)
    bench.slots.source.copy_(draw.normal(*bench.slots.source.shape))
    launch(bench.call._source)
    f0 = check_f0(bench, parts)
    advance, phase = check_phase(bench, f0, before)
    check_spectrum(bench, check_source(bench, f0, advance, phase))


def exact_audio(bench: VocoderBench, plan: RowPlan, windows: Tensor, withheld: Tensor) -> Tensor:
    """Overlapping windows added, divided by the windows that a sample has seen, limited, faded in. float64 [samples]."""
    hop, span, samples = CONFIG.istft_hop_len, CONFIG.istft_n_fft, plan.frames * SAMPLES
    count = samples // hop + 1
    total = torch.zeros((count - 1) * hop + span, dtype=torch.float64, device=windows.device)
    seen = torch.zeros_like(total)
    squares = torch.hann_window(span, periodic=True, dtype=torch.float64, device=windows.device) ** 2
    at = torch.arange(count, device=windows.device)[:, None] * hop + torch.arange(span, device=windows.device)
    total.index_add_(0, at.flatten(), windows[:count].double().flatten())
    seen.index_add_(0, at.flatten(), squares.repeat(count))
    inner = slice(span // 2, span // 2 + samples)
    audio = (total[inner] / seen[inner]).clamp(-CONFIG.audio_limit, CONFIG.audio_limit)
    if plan.fades:
        fade_in, fade_out = (fade.double() for fade in bench.fades)
        begin = plan.overlap * SAMPLES
        faded = audio[begin : begin + len(fade_in)]
        audio[begin : begin + len(fade_in)] = faded * fade_in[: len(faded)] + (withheld.double() * fade_out)[: len(faded)]
    return audio


@batches
def test_overlap_add_and_keep_state(batch: str) -> None:
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    space, slots, frames, used = bench.space, bench.slots, bench.bucket.frames, len(bench.plans)
    windows = bench.rows_of(space.windows, frames * bench.call.rate + 1)
    mel, source = bench.rows_of(space.mel, frames), bench.rows_of(space.source, frames * SAMPLES)
    for tensor in (windows, mel, source, slots.withheld):
        tensor.copy_(0.5 * draw.normal(*tensor.shape))
    withheld = slots.withheld.clone()
    launch(bench.call._finish)

    audio = bench.rows_of(space.audio, frames * SAMPLES)
    due, kept_mel, kept_source = (torch.full_like(tensor, torch.nan) for tensor in (space.out, slots.mel, slots.source))
    kept_withheld = withheld.clone()
    for row, plan in enumerate(bench.plans):
        samples = plan.frames * SAMPLES
        assert_close(audio[row, :samples], exact_audio(bench, plan, windows[row], withheld[plan.slot]), FLOAT32)
        assert_untouched(audio[row, samples:])
        emitted = slice(plan.overlap * SAMPLES, plan.emitted * SAMPLES)
        begin = plan.out_frame * SAMPLES
        due[begin : begin + emitted.stop - emitted.start] = audio[row, emitted]
        rest = audio[row, emitted.stop : min(samples, emitted.stop + VOCODER_OVERLAP_FRAMES * SAMPLES)]
        kept_withheld[plan.slot, : len(rest)] = rest
        state = slice(plan.next_first, min(plan.frames, plan.next_first + STATE_FRAMES))
        kept_mel[plan.slot, : state.stop - state.start] = mel[row, state]
        kept_source[plan.slot, : (state.stop - state.start) * SAMPLES] = source[row, state.start * SAMPLES : state.stop * SAMPLES]
    assert_untouched(audio[used:])
    for found, expected in ((space.out, due), (slots.withheld, kept_withheld), (slots.mel, kept_mel), (slots.source, kept_source)):
        assert torch.equal(found.isnan(), expected.isnan()), "other memory was written, or some of it was not"
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())
