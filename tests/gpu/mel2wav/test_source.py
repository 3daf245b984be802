"""f0, phases and the source signal. Kernels: ``classify_f0``, ``follow_phase``, ``make_source``.

The host launches them in a row; each result is compared with what follows from that of the previous kernel.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.gpu.checks import INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.mel2wav.bench import BATCHES, CONFIG, STATE_FRAMES, RowPlan, VocoderBench, launch, normal_noise
from tests.gpu.mel2wav.bench import SAMPLES_PER_MEL_FRAME as SAMPLES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

batches = pytest.mark.parametrize("batch", sorted(BATCHES))
PHASE_BOUND = 2e-6  # cycles
HARMONICS = CONFIG.nb_harmonics + 1


def turn(difference: Tensor) -> float:
    """The largest difference of phases, in cycles."""
    return float((difference - difference.round()).abs().max()) if difference.numel() else 0.0


def check_f0(bench: VocoderBench, features: list[Tensor]) -> Tensor:
    """f0 [rows, frames] as found."""
    classifier = bench.hift.f0_predictor.classifier
    f0 = bench.rows_of(bench.space.f0, bench.bucket.frames)
    for row, (plan, x) in enumerate(zip(bench.plans, features, strict=True)):
        exact = (x @ classifier.weight[0].double() + classifier.bias.double()).abs()
        assert_close(f0[row, : plan.frames], exact, 1e-4)  # a single frame may be near zero, where its terms cancel
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


def check_source(bench: VocoderBench, f0: Tensor, advance: Tensor, phase: Tensor) -> None:
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


@batches
def test_classify_f0_follow_phase_and_make_source(batch: str) -> None:
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    features, before = bench.fill_source_inputs(draw)
    launch(bench.call._source)
    f0 = check_f0(bench, features)
    check_source(bench, f0, *check_phase(bench, f0, before))
