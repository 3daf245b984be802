"""Windows and mel filters that several front ends share. Numpy alone."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray


@cache
def periodic_hann(size: int) -> NDArray[np.float64]:
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window


def _slaney_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's Auditory Toolbox scale: linear (200/3 Hz per mel) below 1 kHz, logarithmic (factor 6.4 in 27 mel) above."""
    return np.where(hz < 1000.0, hz * 3 / 200, 15 + 27 * np.log(np.maximum(hz, 1000.0) / 1000.0) / np.log(6.4))


def _slaney_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15, mel * 200 / 3, 1000.0 * np.exp((np.maximum(mel, 15) - 15) * np.log(6.4) / 27))


@cache
def slaney_mel_filters(sample_rate: int, fft_size: int, mel_bins: int, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """Triangles equally spaced on the Slaney scale, each of area 1 in Hz (librosa's default). [mel_bins, fft_size // 2 + 1]."""
    frequencies = np.linspace(0, sample_rate / 2, fft_size // 2 + 1)
    low_mel, high_mel = _slaney_mel(np.array([low_hz, high_hz]))
    edges = _slaney_hz(np.linspace(low_mel, high_mel, mel_bins + 2))
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0, np.minimum((frequencies - left) / (centre - left), (right - frequencies) / (right - centre)))
    filters = triangles * 2 / (right - left)
    filters.setflags(write=False)
    return filters
