"""The spectral front-ends in PyTorch are those in numpy, for recordings of any length."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.types import FloatArray
from bistream.voice.build import prompt_mel
from bistream.voice.features import fbank_16k, log_mel_16k
from bistream.voice.torch_features import TorchFeatures

FEATURES = TorchFeatures(torch.device("cpu"))
ROUNDING = 1e-6  # both in float64, rounded once
# The mel's recording is resampled in float32 there and in float64 here: 1e-7 of the peak, which the logarithm of a quiet band of a loud
# tone shows as up to 1e-3, the tolerance of the parity tests.
RESAMPLED = 1e-3


def sound(samples: int, kind: str) -> FloatArray:
    time_s, noise = np.arange(samples) / 16_000, np.random.default_rng(samples).standard_normal(samples)
    waveform: NDArray[np.float64] = {
        "noise": 0.1 * noise,
        "tone in noise": 0.3 * np.sin(2 * np.pi * 440 * time_s) + 1e-3 * noise,
        "silence": 0 * time_s,
    }[kind]
    return waveform.astype(np.float32)


@settings(max_examples=15)
@given(samples=st.integers(400, 40_000), kind=st.sampled_from(["noise", "tone in noise", "silence"]))
def test_log_mel_and_filter_bank(samples: int, kind: str) -> None:
    waveform = sound(samples, kind)
    loaded = FEATURES.load(waveform)
    for found, expected in ((FEATURES.log_mel_16k(loaded), log_mel_16k(waveform)), (FEATURES.fbank_16k(loaded), fbank_16k(waveform))):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, atol=ROUNDING, rtol=0)


@settings(max_examples=15)
@given(samples=st.integers(1000, 40_000), kind=st.sampled_from(["noise", "tone in noise", "silence"]), high_hz=st.sampled_from([8e3, 12e3]))
def test_prompt_mel(samples: int, kind: str, high_hz: float) -> None:
    waveform = sound(samples, kind)
    np.testing.assert_allclose(FEATURES.prompt_mel(FEATURES.load(waveform), high_hz), prompt_mel(waveform, high_hz), atol=RESAMPLED, rtol=0)
