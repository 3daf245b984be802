"""Reading sounds for the judges."""

from __future__ import annotations

import numpy as np
import soundfile
from numpy.typing import NDArray

from bistream.audio.resample import resample

RATE = 16_000
SHORTEST_S = 0.3  # judges of voices and quality fail on less


def read(path: str) -> NDArray[np.float32]:
    """float32 [N], 16 kHz mono."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono: NDArray[np.float32] = samples.mean(axis=1)
    return mono if rate == RATE else resample(mono, rate, RATE)
