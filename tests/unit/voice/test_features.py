"""Shapes, edges and properties of the front-ends; their values are checked in tests/parity/test_frontend.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.audio.spectral import slaney_mel_filters
from bistream.voice.features import fbank_16k, kaldi_mel_filters, log_mel_16k, mel_24k
from tests.unit.voice.voices import noise


@settings(max_examples=12)
@given(st.integers(721, 20_000))
def test_frame_counts(samples: int) -> None:
    assert log_mel_16k(noise(samples)).shape == (128, samples // 160)
    assert mel_24k(noise(samples)).shape == (samples // 480, 80)
    assert fbank_16k(noise(samples)).shape == (1 + (samples - 400) // 160, 80)


def test_silence_gives_the_floors() -> None:
    silence = np.zeros(16_000, dtype=np.float32)
    np.testing.assert_allclose(log_mel_16k(silence), (-10 + 4) / 4, atol=1e-6)
    np.testing.assert_allclose(fbank_16k(silence), np.log(np.finfo(np.float32).eps), atol=1e-4)
    assert np.isfinite(mel_24k(silence)).all()


def test_a_louder_recording_is_shifted_in_the_log_domain() -> None:
    waveform = noise(24_000)
    louder = waveform + waveform
    np.testing.assert_allclose(mel_24k(louder) - mel_24k(waveform), np.log(2), atol=1e-3)
    np.testing.assert_allclose(fbank_16k(louder) - fbank_16k(waveform), np.log(4), atol=1e-3)


@pytest.mark.parametrize("hertz", [300, 1000, 4000])
def test_a_tone_peaks_in_its_band(hertz: int) -> None:
    time_16k, time_24k = np.arange(16_000) / 16_000, np.arange(24_000) / 24_000
    for front_end, time, filters, rate in (
        (lambda x: log_mel_16k(x).T, time_16k, slaney_mel_filters(16_000, 400, 128, 0.0, 8000.0), 16_000),
        (mel_24k, time_24k, slaney_mel_filters(24_000, 1920, 80, 0.0, 8000.0), 24_000),
        (fbank_16k, time_16k, kaldi_mel_filters(), 16_000),
    ):
        features = front_end(np.sin(2 * np.pi * hertz * time).astype(np.float32))
        loudest = int(features[features.shape[0] // 2].argmax())
        bins = np.flatnonzero(filters[loudest])
        width = rate / 2 / (filters.shape[1] - 1)
        assert (bins[0] - 1.5) * width <= hertz <= (bins[-1] + 1.5) * width
