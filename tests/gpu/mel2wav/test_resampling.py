"""Convolutions that change the rate, and the last one, which yields windows of audio. Kernel: ``convolve``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.checks import BOUNDS, INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.mel2wav.bench import BATCHES, CONFIG, DTYPE, Rate, VocoderBench, doubled, launch, snake
from tests.gpu.mel2wav.bench import packed_rows as _packed

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BOUND = BOUNDS[DTYPE]
batches = pytest.mark.parametrize("batch", sorted(BATCHES))
stages = pytest.mark.parametrize("stage", range(len(CONFIG.upsample_rates)))


def assert_rows(bench: VocoderBench, slot: Tensor, rate: Rate, rows: list[Tensor], gaps: bool) -> None:
    """A slot [capacity, channels] holds these rows and, with ``gaps``, zeros around them; no other memory was written."""
    untouched = torch.ones(len(slot), dtype=torch.bool, device=slot.device)
    if gaps:
        untouched[rate.extra : bench.extent(rate)] = False
    for (start, length), row in zip(bench.starts(rate), rows, strict=True):
        assert_close(slot[start : start + length], row, BOUND)
        untouched[start : start + length] = False
    assert_untouched(slot[untouched])
    if gaps:
        in_gap = ~untouched
        for start, length in bench.starts(rate):
            in_gap[start : start + length] = False
        assert not slot[in_gap].any()


@stages
@batches
def test_transposed(batch: str, stage: int) -> None:
    """Up to a stage's rate; the last stage duplicates the position at the start of every row."""
    draw = Draw(batch, stage)
    bench = VocoderBench(batch, draw)
    call, coming, here = bench.call, bench.space.rates[stage], bench.space.rates[stage + 1]
    conv = bench.hift.ups[stage]
    assert isinstance(conv, nn.ConvTranspose1d) and isinstance(conv.padding, tuple)
    source = bench.space.stage_in.view(-1, conv.in_channels)
    rows = []
    for start, length in bench.starts(coming):
        source[start : start + length] = draw.normal(length, conv.in_channels, dtype=DTYPE)
        rows.append(source[start : start + length].double())
    area, _ = call._sources[stage]
    out = area.slot(7)
    launch(
        call._convolve, bench.weights.stages[stage].up, bench.space.stage_in, _packed(coming), _packed(here), out,
        repeats_first=here.extra > 0,
    )  # fmt: skip
    weight, bias = doubled(conv)
    exact = [F.conv_transpose1d(row.T[None], weight, bias, conv.stride, conv.padding)[0].T for row in rows]
    assert_rows(bench, out, here, [torch.cat([row[1:2], row]) for row in exact] if here.extra else exact, gaps=False)


@stages
@batches
def test_strided_with_snake(batch: str, stage: int) -> None:
    """The source's spectrum down to a stage's rate, and its activation."""
    draw = Draw(batch, stage)
    bench = VocoderBench(batch, draw)
    call, here, bins = bench.call, bench.space.rates[stage + 1], CONFIG.istft_n_fft + 2
    spectrum = bench.rows_of(bench.space.spectrum, bench.bucket.frames * call.rate + 1)
    rows = []
    for row, plan in enumerate(bench.plans):
        windows = plan.frames * call.rate + 1
        spectrum[row, :windows] = 0.0
        spectrum[row, :windows, :bins] = draw.normal(windows, bins, dtype=DTYPE)
        rows.append(spectrum[row, :windows, :bins].double())
    area, _ = call._sources[stage]
    out, active, packed = area.slot(0), area.slot(1), bench.weights.stages[stage]
    launch(
        call._convolve, packed.source_down, bench.space.spectrum, call._spectrum, _packed(here), out, active=(packed.source_alpha, active)
    )
    conv = bench.hift.source_downs[stage]
    assert isinstance(conv, nn.Conv1d)
    weight, bias = doubled(conv)
    exact = [F.conv1d(row.T[None], weight, bias, conv.stride, conv.padding)[0].T for row in rows]
    assert_rows(bench, out, here, exact, gaps=False)
    assert_rows(bench, active, here, [snake(row, packed.source_alpha.double()) for row in exact], gaps=True)


@batches
def test_windows_of_audio(batch: str) -> None:
    """The last convolution: log magnitudes and phases, and the inverse transform of every window."""
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    call, rate, conv = bench.call, bench.space.rates[-1], bench.hift.conv_post
    source = bench.space.stage_in.view(-1, conv.in_channels)
    rows = []
    for start, length in bench.starts(rate):
        source[start : start + length] = draw.normal(length, conv.in_channels, dtype=DTYPE)
        rows.append(source[start : start + length].double())
    launch(call._convolve, bench.weights.post, bench.space.stage_in, _packed(rate), call._spectrum, bench.space.windows, span=16)
    weight, bias = doubled(conv)
    found = bench.rows_of(bench.space.windows, bench.bucket.frames * call.rate + 1)
    for row, x in enumerate(rows):
        magnitude, phase = F.conv1d(x.T[None], weight, bias, padding=conv.padding)[0].chunk(2)
        magnitude, phase = magnitude.exp().clamp(max=100.0), phase.sin()
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()])
        exact = spectrum.T @ bench.hift.fourier.inverse_basis[:, 0].double()
        assert_close(found[row, : len(x)], exact, 1e-4)
        assert_untouched(found[row, len(x) :])
    assert_untouched(found[len(rows) :])
