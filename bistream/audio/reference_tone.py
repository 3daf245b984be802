"""A recording that needs no file: the golden utterance and the checks of a checkpoint speak in its voice."""

from __future__ import annotations

import numpy as np

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray


def recording() -> FloatArray:
    """A second of a rising tone with overtones, 16 kHz: float32 [16000]."""
    time_s = np.arange(REFERENCE_SAMPLE_RATE) / REFERENCE_SAMPLE_RATE
    phase = 2.0 * np.pi * (110.0 * time_s + 30.0 * time_s**2)
    return sum((0.1 / overtone * np.sin(overtone * phase) for overtone in range(1, 8)), np.zeros_like(time_s)).astype(np.float32)
