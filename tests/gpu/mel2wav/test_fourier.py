"""Short-time Fourier transform of the source, and overlap-add of windows of audio. Kernels: ``transform``, ``overlap_add``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from tests.gpu.checks import BOUNDS, INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.mel2wav.bench import BATCHES, CONFIG, DTYPE, RowPlan, VocoderBench, launch
from tests.gpu.mel2wav.bench import SAMPLES_PER_MEL_FRAME as SAMPLES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

batches = pytest.mark.parametrize("batch", sorted(BATCHES))


@batches
def test_transform(batch: str) -> None:
    """Of the source that ``make_source`` wrote."""
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    bench.fill_source_inputs(draw)
    launch(bench.call._source)
    source = bench.rows_of(bench.space.source, bench.bucket.frames * SAMPLES)
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
def test_overlap_add(batch: str) -> None:
    draw = Draw(batch)
    bench = VocoderBench(batch, draw)
    bench.fill_results(draw)
    withheld = bench.slots.withheld.clone()
    launch(bench.call._finish)
    windows = bench.rows_of(bench.space.windows, bench.bucket.frames * bench.call.rate + 1)
    audio = bench.rows_of(bench.space.audio, bench.bucket.frames * SAMPLES)
    for row, plan in enumerate(bench.plans):
        samples = plan.frames * SAMPLES
        assert_close(audio[row, :samples], exact_audio(bench, plan, windows[row], withheld[plan.slot]), BOUNDS[torch.float32])
        assert_untouched(audio[row, samples:])
    assert_untouched(audio[len(bench.plans) :])
