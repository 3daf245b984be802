"""Parts of the vocoder network: the Fourier frames against torch, padded rows against rows alone, a source cut in two."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.mel2wav.fourier import FourierFrames
from bistream.mel2wav.hift import Conv, HiFT, RowMasks, SourceStart, channels_last
from bistream.mel2wav.weights import load_hift
from tests.formats import SAMPLES_PER_MEL_FRAME
from tests.unit.mel2wav import tiny

N_FFT, HOP = tiny.CONFIG.istft_n_fft, tiny.CONFIG.istft_hop_len
HARMONICS = tiny.CONFIG.nb_harmonics + 1


@pytest.fixture(scope="module")
def hift(tmp_path_factory: pytest.TempPathFactory) -> HiFT:
    config = tiny.write_model(tmp_path_factory.mktemp("model"), tiny.random_state())
    return load_hift(config.model_dir, tiny.CONFIG, torch.device("cpu"))


@settings(max_examples=10)
@given(st.integers(4, 200), st.integers(0, 2**31))
def test_fourier_frames_equal_torch(num_hops: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    fourier, window = FourierFrames(N_FFT, HOP), torch.hann_window(N_FFT)
    signal = torch.randn(1, num_hops * HOP, generator=generator)
    expected = torch.stft(signal, N_FFT, HOP, window=window, return_complex=True)
    found = fourier.stft(signal, torch.tensor([signal.shape[1]]))
    torch.testing.assert_close(found, torch.cat([expected.real, expected.imag], dim=1), atol=1e-5, rtol=0)

    magnitude = torch.rand(1, N_FFT // 2 + 1, num_hops + 1, generator=generator) + 0.1
    phase = torch.randn(1, N_FFT // 2 + 1, num_hops + 1, generator=generator)
    expected = torch.istft(torch.polar(magnitude, phase), N_FFT, HOP, window=window)
    found = fourier.istft(magnitude, phase, torch.tensor([num_hops * HOP]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@settings(max_examples=8)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=4))
def test_a_padded_row_equals_the_row_alone(hift: HiFT, lengths: list[int]) -> None:
    size = max(lengths) + 3
    mels = [tiny.voiced_mel(length, seed=index) for index, length in enumerate(lengths)]
    sources = [torch.randn(length * SAMPLES_PER_MEL_FRAME, generator=torch.Generator().manual_seed(length)) * 0.1 for length in lengths]
    mel = torch.stack([torch.nn.functional.pad(item, (0, size - item.shape[1])) for item in mels])
    source = torch.full((len(lengths), size * SAMPLES_PER_MEL_FRAME), 9.0)  # content after a row's end must not matter
    for row, item in enumerate(sources):
        source[row, : len(item)] = item
    frames = torch.tensor(lengths)
    masks = RowMasks(frames, size, tiny.CONFIG)
    f0, audio = hift.f0(mel, masks), hift.decode(mel, source, frames, masks)
    for row, length in enumerate(lengths):
        alone = hift.decode(mels[row][None], sources[row][None], torch.tensor([length]))
        torch.testing.assert_close(f0[row, :length], hift.f0(mels[row][None])[0], atol=1e-3, rtol=0)
        torch.testing.assert_close(audio[row, : length * SAMPLES_PER_MEL_FRAME], alone[0], atol=1e-4, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*(st.integers(least, most) for least, most in ((1, 3), (2, 20), (3, 11), (1, 5), (1, 3), (51, 700)))))
def test_the_order_in_memory_stays_and_changes_no_sum(sizes: tuple[int, ...]) -> None:
    rows, channels, kernel, dilation, stride, length = sizes
    conv = Conv(channels, channels + 1, kernel, stride=stride, dilation=dilation, padding=kernel // 2).requires_grad_(False)
    x = torch.randn(rows, channels, length)
    expected = torch.nn.functional.conv1d(x, conv.weight, conv.bias, stride, kernel // 2, dilation)
    conv.weight.data = channels_last(conv.weight)
    found = conv(channels_last(x))
    assert found.stride(1) == 1  # else every operation after it would change the order again
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def start_of(phase: Tensor, frames: int, *, starts: bool) -> SourceStart:
    return SourceStart(phase[None], torch.tensor([0]), torch.tensor([starts]), torch.tensor([frames]))


@settings(max_examples=10)
@given(st.integers(2, 60), st.data())
def test_a_source_continues_where_it_was_cut(hift: HiFT, num_frames: int, data: st.DataObject) -> None:
    """In the last half frame before the cut the first piece does not know the next frequency; everything else is equal."""
    cut = data.draw(st.integers(1, num_frames - 1))
    f0 = 80 + 200 * torch.rand(1, num_frames, generator=torch.Generator().manual_seed(num_frames))
    noise = torch.randn(1, num_frames * SAMPLES_PER_MEL_FRAME, generator=torch.Generator().manual_seed(cut))
    zero = torch.zeros(HARMONICS, dtype=torch.float64)
    whole, _ = hift.m_source(f0, noise, start_of(zero, num_frames, starts=True))
    sample = cut * SAMPLES_PER_MEL_FRAME
    left, phase = hift.m_source(f0[:, :cut], noise[:, :sample], start_of(zero, cut, starts=True))
    right, _ = hift.m_source(f0[:, cut:], noise[:, sample:], start_of(phase[0, :, -1], num_frames - cut, starts=False))
    known = sample - SAMPLES_PER_MEL_FRAME // 2
    torch.testing.assert_close(left[:, :known], whole[:, :known], atol=2e-5, rtol=0)
    torch.testing.assert_close(right, whole[:, sample:], atol=2e-5, rtol=0)


def test_the_phase_stays_exact(hift: HiFT) -> None:
    """A steady tone is as clean after 40 seconds as at the beginning (a float32 sum of phases would be off by 1e-2 cycles)."""
    num_frames = 40 * 50
    f0 = torch.full((1, num_frames), 187.5)  # 1/128 cycle per sample, exact in binary; 15 cycles in 4 frames
    silence = torch.zeros(1, num_frames * SAMPLES_PER_MEL_FRAME)
    zero = torch.zeros(HARMONICS, dtype=torch.float64)
    source, _ = hift.m_source(f0, silence, start_of(zero, num_frames, starts=False))
    periods = source.view(-1, 4 * SAMPLES_PER_MEL_FRAME)
    assert periods[0].std() > 1e-3
    torch.testing.assert_close(periods[-2], periods[0], atol=1e-5, rtol=0)


def test_one_draw_per_sample_has_the_spread_of_one_per_harmonic(hift: HiFT) -> None:
    noise = torch.randn(1, 50_000, HARMONICS, generator=torch.Generator().manual_seed(0))
    assert hift.m_source.merge_noise(noise).std() == pytest.approx(float(hift.m_source.noise_gain()), rel=0.02)
