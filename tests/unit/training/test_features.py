"""The batched features of training equal those of the server; pitch is measured right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bistream.voice import features as served
from training import features

WAVEFORM = (0.1 * np.random.default_rng(0).standard_normal(24_000)).astype(np.float32)
BATCH = torch.from_numpy(WAVEFORM)[None]


def test_mels() -> None:
    # float32 against float64, in logarithms
    assert np.abs(features.log_mel_16k(BATCH)[0].numpy() - served.log_mel_16k(WAVEFORM)).max() < 1e-4
    assert np.abs(features.mel_24k(BATCH)[0].numpy() - served.mel_24k(WAVEFORM)).max() < 1e-4
    fbank = served.fbank_16k(WAVEFORM)
    assert np.abs(features.fbank_16k(BATCH)[0].numpy() - (fbank - fbank.mean(0))).max() < 2e-3


@pytest.mark.parametrize("hertz", [75.0, 142.0, 260.0, 390.0])
def test_pitch_of_a_buzz_and_of_noise(hertz: float) -> None:
    time = torch.arange(24_000) / 24_000
    buzz = 0.05 * torch.stack([torch.sin(2 * torch.pi * hertz * overtone * time) / overtone for overtone in range(1, 8)]).sum(0)
    middle = slice(5, 45)
    assert (features.pitch(buzz[None])[0, middle] - hertz).abs().max() < 0.01 * hertz
    noise = 0.1 * torch.randn(1, 24_000, generator=torch.Generator().manual_seed(0))
    assert (features.pitch(noise)[0, middle] == 0).float().mean() > 0.9
    assert not features.pitch(torch.zeros(1, 24_000)).any()
