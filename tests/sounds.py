"""Sounds for tests that need a recording in which somebody seems to speak."""

from __future__ import annotations

import numpy as np

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray

_FORMANTS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))  # Peterson and Barney, 1952
_SYLLABLE_S = 0.16


def speech_like(samples: int = REFERENCE_SAMPLE_RATE, seed: int = 0) -> FloatArray:
    """Vowels in turn, each with a hiss before it: float32 [samples], 16 kHz, peak 0.3. Equal for equal arguments."""
    generator = np.random.default_rng(seed)
    pitch_hz = generator.uniform(90, 240)
    length = round(_SYLLABLE_S * REFERENCE_SAMPLE_RATE)
    first = int(generator.integers(len(_FORMANTS_HZ)))
    count = -(-samples // length)
    sound = np.concatenate([_syllable(_FORMANTS_HZ[(first + k) % len(_FORMANTS_HZ)], pitch_hz, length, generator) for k in range(count)])
    return np.asarray(0.3 * sound[:samples] / np.abs(sound[:samples]).max(), np.float32)


def _syllable(formants_hz: tuple[int, ...], pitch_hz: float, length: int, generator: np.random.Generator) -> FloatArray:
    """float64 [length]."""
    time_s = np.arange(length) / REFERENCE_SAMPLE_RATE
    harmonics_hz = np.arange(pitch_hz, 4000, pitch_hz)
    heights = sum(1 / (1 + ((harmonics_hz - formant) / 100) ** 2) for formant in formants_hz) / np.sqrt(harmonics_hz)
    vowel = np.sin(2 * np.pi * time_s[:, None] * harmonics_hz) @ np.asarray(heights)
    hiss = np.diff(generator.standard_normal(length + 1)) * np.abs(vowel).max() * 0.1
    voiced = np.minimum(time_s / 0.06, 1.0)
    swell = np.sin(np.pi * (np.arange(length) + 0.5) / length) ** 0.5
    sound: FloatArray = (vowel * voiced + hiss * (1 - voiced)) * swell
    return sound
