"""Levels of short frames of a recording, in dB of full scale: what is loud, and for how long."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bistream.types import FloatArray

HOP = 220  # samples at 16 kHz; a frame is two of them (hop_length and frame_length of upstream's page)
FRAME = 2 * HOP
HELD_FRAMES = 5  # 70 ms: shorter than any vowel, longer than a click
STEADY_FRAMES = 36  # half a second
STEADY_DB = 6.0
_RUMBLE = 160  # samples
_LEAST_POWER = 1e-10  # librosa's amin: -100 dB

Levels = NDArray[np.float64]


def levels_db(waveform: FloatArray | Levels) -> Levels:
    """Mean power of each frame, in dB: float64 [1 + N // HOP]. Frame k is centred on sample k * HOP; beyond the ends there are zeros.

    As ``librosa.feature.rms`` and ``amplitude_to_db`` with frame_length 440 and hop_length 220.
    """
    frames = 1 + len(waveform) // HOP
    padded = np.zeros((frames + 1) * HOP)
    inside = min(len(waveform), frames * HOP)
    padded[HOP : HOP + inside] = waveform[:inside]
    blocks = np.square(padded).reshape(frames + 1, HOP).sum(axis=1)
    levels: Levels = 10.0 * np.log10(np.maximum((blocks[:-1] + blocks[1:]) / FRAME, _LEAST_POWER))
    return levels


def held_levels(levels: Levels) -> Levels:
    """[max(1, T - HELD_FRAMES + 1)]: the level that all of the next ``HELD_FRAMES`` frames reach."""
    held: Levels = sliding_window_view(levels, min(HELD_FRAMES, len(levels))).min(axis=1)
    return held


def without_rumble(waveform: FloatArray) -> Levels:
    """Less the mean of the 10 ms around each sample: hum of the mains, wind and a constant are no part of speech. float64 [N]."""
    sums = np.concatenate([[0.0], np.cumsum(waveform, dtype=np.float64)])
    middle = np.arange(len(waveform))
    first, last = np.maximum(middle - _RUMBLE // 2, 0), np.minimum(middle + _RUMBLE // 2, len(waveform))
    centred: Levels = waveform - (sums[last] - sums[first]) / (last - first)
    return centred


def steady_level(levels: Levels) -> float:
    """The loudest median of half a second whose level hardly varies; -inf: there is none. That is noise: speech varies by 10 to 20 dB."""
    if len(levels) < STEADY_FRAMES:
        return -np.inf
    smooth = 10.0 * np.log10(np.convolve(10.0 ** (levels / 10.0), np.ones(HELD_FRAMES) / HELD_FRAMES, "valid"))
    lowest, middle, highest = np.percentile(sliding_window_view(smooth, STEADY_FRAMES - HELD_FRAMES + 1), (10, 50, 90), axis=1)
    return float(np.max(middle, where=highest - lowest < STEADY_DB, initial=-np.inf))
