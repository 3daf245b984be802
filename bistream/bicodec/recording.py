"""A recording becomes what the codec's networks read. numpy only.

Order: volume, then two paths: a clip of fixed length and its mel frames for the global tokens, the whole recording in unit variance for
the semantic tokens. Upstream's Triton runtime leaves the volume as it is, its command line does not; the mel frames have no logarithm, so
the volume matters to the global tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.audio.spectral import periodic_hann, slaney_mel_filters
from bistream.bicodec.config import MelSizes, RecordingSizes
from bistream.gpu.steps import tiles
from bistream.types import FloatArray

Samples64 = NDArray[np.float64]

QUIET_PEAK = 0.1  # quieter recordings are first scaled to this peak
LEAST_PEAK = 1e-3  # that a quiet one is taken to have
HEARD = 0.01  # samples at or below it say nothing about the volume
FEWEST_HEARD = 10
TARGET = 0.2  # mean of the loud samples, those from the 90th to the 99th percentile
LEAST_GAIN, MOST_GAIN = 0.1, 10.0
VARIANCE_FLOOR = 1e-7
BLOCK_FRAMES = 64  # the Fourier transform holds the GIL


def normalize_volume(samples: Samples64) -> Samples64:
    """float64 [N] -> the same at upstream's usual volume, peaks at most 1 (upstream: ``audio_volume_normalize``)."""
    levels = np.sort(np.abs(samples))
    if not levels.size:
        return samples
    if levels[-1] < QUIET_PEAK:
        samples = samples / max(levels[-1], LEAST_PEAK) * QUIET_PEAK
    levels = levels[levels > HEARD]  # of the recording as it came
    count = len(levels)
    if count <= FEWEST_HEARD:
        return samples
    volume = float(np.mean(levels[int(0.9 * count) : int(0.99 * count)]))
    samples = samples * np.clip(TARGET / volume, LEAST_GAIN, MOST_GAIN)
    peak = float(np.abs(samples).max())
    return samples / peak if peak > 1 else samples


def reference_clip(samples: Samples64, sizes: RecordingSizes) -> Samples64:
    """[N], N above 0 -> its beginning, of ``reference_s`` in whole tokens; a shorter recording is repeated."""
    size = int(sizes.sample_rate * sizes.reference_s) // sizes.samples_per_token * sizes.samples_per_token
    return np.tile(samples, size // len(samples) + 1)[:size] if len(samples) < size else samples[:size]


def mel_frames(samples: NDArray[Any], sizes: MelSizes) -> FloatArray:
    """[N], N above half a Fourier frame -> float32 [bins, N // hop + 1].

    Centred frames with reflection, a Hann window in the middle of a longer Fourier frame, magnitude, Slaney's filters; no logarithm.
    """
    padded = np.pad(samples.astype(np.float64), sizes.fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, sizes.fft)[:: sizes.hop]
    window, filters = mel_window(sizes), mel_filters(sizes)
    mel = np.empty((len(frames), sizes.bins))
    for block in tiles(len(frames), BLOCK_FRAMES):
        mel[block] = np.abs(np.fft.rfft(frames[block] * window, axis=1)) @ filters.T
    return np.ascontiguousarray(mel.T, dtype=np.float32)


def mel_window(sizes: MelSizes) -> Samples64:
    """[fft]: zeros around the window."""
    before = (sizes.fft - sizes.window) // 2
    return np.pad(periodic_hann(sizes.window), (before, sizes.fft - sizes.window - before))


def mel_filters(sizes: MelSizes) -> Samples64:
    """[bins, fft // 2 + 1]."""
    high_hz = sizes.sample_rate / 2 if sizes.high_hz is None else sizes.high_hz
    return slaney_mel_filters(sizes.sample_rate, sizes.fft, sizes.bins, sizes.low_hz, high_hz)


def unit_variance(samples: NDArray[Any]) -> FloatArray:
    """[N] -> float32 [N] of mean 0 and variance 1: what wav2vec2 reads (``Wav2Vec2FeatureExtractor`` of transformers)."""
    wide = samples.astype(np.float32).astype(np.float64)
    output: FloatArray = ((wide - wide.mean()) / np.sqrt(wide.var() + VARIANCE_FLOOR)).astype(np.float32)
    return output
