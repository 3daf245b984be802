"""Front-ends against the reference implementation's outputs. Tolerances: tests/golden/README.md, except for the filter bank.

The reference computes its filter bank in float32, we in float64. So where a band holds little energy relative to its frame, the logarithm
shows the reference's rounding: no fixed number bounds the difference, ``fbank_rounding`` does.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.audio.resample import resample
from bistream.types import FloatArray
from bistream.voice.features import KALDI_FFT, KALDI_FRAME, KALDI_HOP, KALDI_PREEMPHASIS, fbank_16k, kaldi_mel_filters, log_mel_16k, mel_24k
from tests.parity.golden import COSYVOICE3_SET, read_json, tensors

FEATURE_TOLERANCE = 1e-3  # logarithms of small numbers
RESAMPLE_TOLERANCE = 1e-5
RESAMPLE_CASES = [match.groups() for key in tensors("frontend") if (match := re.fullmatch(r"resample_(\d+)_(\d+)_in", key))]


# A filter's side is a difference of two mel values of up to 2840, divided by 35: in float32 the smallest weight is off by 8.1e-4 of itself.
WEIGHT_ROUNDING = 9e-4
# Largest value seen in noise, voices and tones up to 4 kHz: 13. A constant offset reaches 21, a tone near Nyquist 34: pre-emphasis
# doubles it.
SPECTRUM_ROUNDING = 16.0


def golden(name: str) -> FloatArray:
    array: FloatArray = tensors("frontend")[name].numpy()
    return array


def fbank_rounding(waveform: FloatArray, features: FloatArray) -> FloatArray:
    """Bound of the difference that float32 arithmetic makes to ``features`` of ``waveform``. [frames, bands].

    Rounding a frame x spreads errors of about eps |x| evenly over its spectrum X. They change a band's energy E, a sum of squares
    |X|^2, by about 2 eps |x| sqrt(E), hence its logarithm by 2 eps |x| / sqrt(E): without bound as E falls, except for the floor.
    """
    frames = np.lib.stride_tricks.sliding_window_view(waveform, KALDI_FRAME)[::KALDI_HOP]
    norm = np.linalg.norm(frames, axis=1, keepdims=True)
    bound: FloatArray = WEIGHT_ROUNDING + SPECTRUM_ROUNDING * np.finfo(np.float32).eps * norm / np.exp(features / 2)
    return bound


def fbank_in_float32(waveform: FloatArray) -> FloatArray:
    """``fbank_16k`` with every step rounded to float32."""
    frames = torch.from_numpy(waveform).unfold(0, KALDI_FRAME, KALDI_HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    emphasised = frames - KALDI_PREEMPHASIS * torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    windowed = emphasised * torch.hann_window(KALDI_FRAME, periodic=False).pow(0.85)
    power = torch.fft.rfft(windowed, n=KALDI_FFT).abs().square()
    energies = power @ torch.from_numpy(kaldi_mel_filters().astype(np.float32)).T
    features: FloatArray = energies.clamp(min=torch.finfo(torch.float32).eps).log().numpy()
    return features


def test_there_are_resampling_cases() -> None:
    assert len(RESAMPLE_CASES) >= 5


@pytest.mark.parametrize(("source_rate", "target_rate"), RESAMPLE_CASES)
def test_resample(source_rate: str, target_rate: str) -> None:
    case = f"resample_{source_rate}_{target_rate}"
    output = resample(golden(f"{case}_in"), int(source_rate), int(target_rate))
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, golden(f"{case}_out"), atol=RESAMPLE_TOLERANCE, rtol=0)


def test_mel_24k() -> None:
    mel = mel_24k(golden("wave24k")[0])
    assert mel.shape[0] == read_json("frontend_info.json")["mel24k_frames"]
    np.testing.assert_allclose(mel, golden("mel24k")[0].T, atol=FEATURE_TOLERANCE, rtol=0)


def test_mel_24k_of_cosyvoice3_reaches_up_to_nyquist() -> None:
    data = COSYVOICE3_SET.tensors("frontend")
    mel = mel_24k(data["wave24k"][0].numpy(), COSYVOICE3_SET.family.mel_high_hz)
    expected = data["mel24k_fmax_null"][0].T.numpy()
    assert mel.shape[0] == COSYVOICE3_SET.read_json("frontend_info.json")["mel24k_frames"]
    np.testing.assert_allclose(mel, expected, atol=FEATURE_TOLERANCE, rtol=0)
    assert np.abs(mel_24k(data["wave24k"][0].numpy()) - expected).max() > 1.0, "the other family's mel would pass"


def test_log_mel_16k() -> None:
    log_mel = log_mel_16k(golden("wave16k")[0])
    assert log_mel.shape[1] == read_json("frontend_info.json")["logmel_frames"]
    np.testing.assert_allclose(log_mel, golden("logmel16k_128")[0], atol=FEATURE_TOLERANCE, rtol=0)


def test_fbank_16k() -> None:
    waveform = golden("wave16k")[0]
    features = fbank_16k(waveform)
    assert features.shape[0] == read_json("frontend_info.json")["fbank_frames"]
    bound = fbank_rounding(waveform, features)
    assert (np.abs(features - golden("fbank16k_80")) <= bound).all()
    centred = features - features.mean(axis=0, keepdims=True)
    assert (np.abs(centred - golden("fbank16k_80_centered")) <= bound + bound.mean(axis=0, keepdims=True)).all()


def tone_in_noise(hertz: float, noise: float) -> FloatArray:
    """Two seconds at 16 kHz."""
    time_s = np.arange(32_000) / 16_000
    samples = 0.3 * np.sin(2 * np.pi * hertz * time_s) + noise * np.random.default_rng(7).standard_normal(32_000)
    waveform: FloatArray = samples.astype(np.float32)
    return waveform


@settings(max_examples=15, deadline=None, derandomize=True)
@given(hertz=st.floats(50, 4000), noise_exponent=st.floats(-5, -1))
def test_float32_arithmetic_stays_within_the_bound_of_the_filter_bank(hertz: float, noise_exponent: float) -> None:
    waveform = tone_in_noise(hertz, 10**noise_exponent)
    features = fbank_16k(waveform)
    assert (np.abs(features - fbank_in_float32(waveform)) <= fbank_rounding(waveform, features)).all()


def test_float32_arithmetic_exceeds_a_fixed_tolerance() -> None:
    """Noise 50 dB below a tone: its bands are off by as much as 3e-3."""
    waveform = tone_in_noise(3000.0, 1e-3)
    assert np.abs(fbank_16k(waveform) - fbank_in_float32(waveform)).max() > 1.5 * FEATURE_TOLERANCE
