"""How audible are the joints of streamed audio? Two numbers per joint, streamed against offline audio of the same mel.

Input: both waveforms and the joints (sample positions where a chunk ended). Output: ``SeamReport``. Numpy only.

Both numbers cover the interval from just before the joint to just after the end of the vocoder's overlap, in windows of
10 ms aligned with the joint:

- ``click_db``: the largest second difference of the streamed audio in a window, relative to the largest of the offline audio in
  that window and its neighbours. Near 0 or below: no sharper than the speech itself at that point. An impulse or a jump stands out.
- ``level_step_db``: the change of the level (streamed relative to offline) from one window to the next. A gain that jumps by
  8 % (upstream's Hamming halves) is 0.67 dB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.families.audio_format import AudioFormat
from bistream.families.registry import DEFAULT_FAMILY
from bistream.types import FloatArray

WINDOWS_PER_SECOND = 100
MARGIN_WINDOWS = 2  # before the joint and after the overlap
FLOOR = 1e-2  # relative to the whole signal's root mean square: quieter windows are judged as if they had this level


@dataclass(frozen=True)
class JointScore:
    click_db: float
    level_step_db: float


@dataclass(frozen=True)
class SeamReport:
    joints: tuple[JointScore, ...]

    @property
    def worst_click_db(self) -> float:
        return max((joint.click_db for joint in self.joints), default=0.0)

    @property
    def worst_level_step_db(self) -> float:
        return max((joint.level_step_db for joint in self.joints), default=0.0)


def joints_of(chunk_samples: Sequence[int]) -> list[int]:
    """Positions between consecutive chunks, empty chunks aside."""
    ends = np.cumsum([samples for samples in chunk_samples if samples])
    return [int(end) for end in ends[:-1]]


def measure_seams(
    streamed: FloatArray, offline: FloatArray, joints: Sequence[int], rates: AudioFormat = DEFAULT_FAMILY.audio_format
) -> SeamReport:
    """Score every joint. ``streamed`` and ``offline`` are [N] and aligned sample by sample; ``ValueError`` if they differ in length."""
    if streamed.shape != offline.shape:
        raise ValueError(f"Streamed audio has {streamed.shape[0]} samples, offline audio {offline.shape[0]}; pass audio of the same mel.")
    return SeamReport(tuple(_score(streamed, offline, joint, rates) for joint in joints))


def _score(streamed: FloatArray, offline: FloatArray, joint: int, rates: AudioFormat) -> JointScore:
    size = rates.sample_rate // WINDOWS_PER_SECOND
    shape = (2 * MARGIN_WINDOWS + -(-rates.vocoder_overlap_samples // size), size)
    begin = joint - MARGIN_WINDOWS * size
    floor = FLOOR * float(np.sqrt(np.mean(np.square(offline, dtype=np.float64)))) + 1e-9
    steps = np.abs(np.diff(_levels_db(streamed, offline, begin, shape, floor)))
    return JointScore(_click_db(streamed, offline, begin, shape, floor), float(steps.max(initial=0.0)))


def _windows(signal: NDArray[np.float64], begin: int, shape: tuple[int, int]) -> NDArray[np.float64]:
    """shape: windows, samples of each -> float64 of that shape; zeros beyond the signal's ends."""
    size = math.prod(shape)
    left, right = max(0, -begin), max(0, begin + size - signal.shape[0])
    return np.pad(signal[max(0, begin) : begin + size], (left, right)).reshape(shape)


def _levels_db(streamed: FloatArray, offline: FloatArray, begin: int, shape: tuple[int, int], floor: float) -> NDArray[np.float64]:
    powers = [np.square(_windows(signal.astype(np.float64), begin, shape)).mean(axis=1) for signal in (streamed, offline)]
    levels: NDArray[np.float64] = 10 * np.log10((powers[0] + floor**2) / (powers[1] + floor**2))
    return levels


def _click_db(streamed: FloatArray, offline: FloatArray, begin: int, shape: tuple[int, int], floor: float) -> float:
    """Second differences are centred, so that an impulse counts in its own window."""
    peaks = [
        np.abs(_windows(np.convolve(signal.astype(np.float64), (1.0, -2.0, 1.0), mode="same"), begin, shape)).max(axis=1)
        for signal in (streamed, offline)
    ]
    around = np.max([np.roll(peaks[1], shift) for shift in (-1, 0, 1)], axis=0) + floor
    return float(20 * np.log10((peaks[0] + floor) / around).max())
