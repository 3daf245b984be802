"""Properties of the resampler; tests/parity/test_frontend.py compares it with the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.audio.resample import resample
from bistream.types import FloatArray

RATES = st.sampled_from([8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000])


def noise(samples: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(source=RATES, target=RATES, samples=st.integers(0, 3000))
def test_length_and_type(source: int, target: int, samples: int) -> None:
    output = resample(noise(samples), source, target)
    assert output.dtype == np.float32
    assert output.shape == (math.ceil(samples * target / source),)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(source=RATES, target=RATES, samples=st.integers(50, 800))
def test_equals_the_plain_sum(source: int, target: int, samples: int) -> None:
    """Output n is the sum over all input samples j of s sinc(s d) cos^2(pi s d / 12), d = j - n source / target, |s d| < 6."""
    waveform = noise(samples)
    divisor = math.gcd(source, target)
    scale = 0.99 * min(source, target) / source
    positions = np.arange(math.ceil(samples * target / source)) * (source // divisor) / (target // divisor)
    crossings = scale * (np.arange(samples)[None, :] - positions[:, None])
    weights = scale * np.sinc(crossings) * np.cos(np.pi * crossings / 12) ** 2 * (np.abs(crossings) < 6)
    expected = waveform if source == target else weights @ waveform
    np.testing.assert_allclose(resample(waveform, source, target), expected, atol=2e-5)


@pytest.mark.parametrize(("source", "target"), [(16000, 24000), (44100, 16000), (48000, 16000), (22050, 16000)])
def test_keeps_a_tone(source: int, target: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(source) / source).astype(np.float32)
    expected = np.sin(2 * np.pi * 440 * np.arange(target) / target)
    margin = target // 100
    np.testing.assert_allclose(resample(tone, source, target)[margin:-margin], expected[margin:-margin], atol=5e-3)


@pytest.mark.parametrize("rate", [0, -16000, 16000.5])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ValueError, match="whole number"):
        resample(noise(10), rate, 16000)  # type: ignore[arg-type]
