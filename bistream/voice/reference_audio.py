"""Validates a client's reference recording: untrusted arrays in, one clean waveform or ``InvalidInputError`` out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError
from bistream.types import FloatArray

MAX_PEAK = 4.0  # resampling overshoots 1 a little; integer samples sent as floats are far beyond


def check_reference_audio(
    waveform: NDArray[Any], length: NDArray[Any] | int | None, config: RuntimeConfig, name: str = "reference_wav"
) -> FloatArray:
    """waveform float32 [N] or [1, N], 16 kHz mono; length: samples before padding (one integer), None: all of it.

    Returns the recording, float32 [length], a copy. ``min_reference_s`` and ``max_reference_s`` apply to the length without
    padding. name: of the input, for the sentences. Raises ``InvalidInputError``.
    """
    waveform = np.asarray(waveform)
    if waveform.dtype != np.float32:
        raise InvalidInputError(f"{name} has dtype {waveform.dtype}; send float32.")
    if waveform.ndim not in (1, 2) or (waveform.ndim == 2 and waveform.shape[0] != 1):
        raise InvalidInputError(f"{name} has shape {list(waveform.shape)}; send one mono recording of shape [1, N].")
    samples = waveform.reshape(-1)
    if samples.size == 0:
        raise InvalidInputError(f"{name} holds 0 samples; send a recording.")
    samples = samples[: _true_length(length, samples.size, name)]
    duration_s = samples.size / REFERENCE_SAMPLE_RATE
    recording = "The reference recording" if name == "reference_wav" else f"The recording in {name}"
    if duration_s < config.min_reference_s:
        raise InvalidInputError(f"{recording} lasts {duration_s:.3f} s at 16 kHz; send at least {config.min_reference_s:g} s.")
    if duration_s > config.max_reference_s:
        raise InvalidInputError(f"{recording} lasts {duration_s:.3f} s at 16 kHz; send at most {config.max_reference_s:g} s.")
    if not np.isfinite(samples).all():
        raise InvalidInputError(f"{name} contains NaN or infinity; send finite samples in [-1, 1].")
    peak = float(np.abs(samples).max())
    if peak > MAX_PEAK:
        raise InvalidInputError(f"{name} has a peak of {peak:.4g}; scale the samples to [-1, 1].")
    return samples.copy()


def _true_length(length: NDArray[Any] | int | None, size: int, name: str) -> int:
    if length is None:
        return size
    array = np.asarray(length)
    if array.size != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidInputError(f"{name}_len is not one integer; send the number of samples of the recording.")
    value = int(array.reshape(-1)[0])
    if not 0 < value <= size:
        raise InvalidInputError(f"{name}_len is {value}, but {name} holds {size} samples; send a number from 1 to {size}.")
    return value
