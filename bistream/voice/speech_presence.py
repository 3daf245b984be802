"""Does anybody speak in a recording? Tells speech from silence, clicks, tones, hum and steady noise; not from music or other voices.

Speech changes the shape of its spectrum all the time, also whispered, sung, noisy or over a telephone. Numbers, of ``_shape_change`` in dB:
white, pink and brown noise 0.6 to 0.7, a held sung vowel 0.03 to 1.3, the ten recordings of assets/ 4.4 to 6.4, whispered ones 6.0 to 6.3,
at 8 kHz 3.7 to 4.6, in white noise as loud as they are 2.5 to 2.8, and 1.7 to 2.0 where the noise is 5 dB louder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError
from bistream.gpu.steps import tiles
from bistream.types import FloatArray
from bistream.voice.levels import held_levels, levels_db, without_rumble

LEAST_LEVEL_DB = -75.0  # of what is held; samples of 16 bit have a noise of -98
LEAST_CHANGE_DB = 1.2
MOST_TONAL = 0.995  # share of the ten strongest bins: two sinusoids
TONE_BINS = 10
_FFT, _HOP = 1024, 512
_BAND_EDGES_HZ = (100, 400, 700, 1000, 1400, 1900, 2600, 3600, 5000, 7500)
_BAND_EDGES = np.array(_BAND_EDGES_HZ) * _FFT // REFERENCE_SAMPLE_RATE
_AVERAGED = 3  # frames; steady noise becomes steady
_BELOW_DB, _ABOVE_DB = 25.0, 10.0  # frames around the held level that count; clicks are above
_RANGE_DB = 30.0  # of the bands of a frame
_LEAST_FRAMES = 4
_BLOCK_FRAMES = 64  # the Fourier transform holds the GIL
_TINY = 1e-12


def require_speech(waveform: FloatArray, recording: str) -> None:
    """waveform float32 [N], 16 kHz. recording: how to call it. Raises ``InvalidInputError``."""
    reason = _what_it_is(waveform)
    if reason is not None:
        raise InvalidInputError(f"{recording} has no speech in it ({reason}); send a recording of somebody who speaks.")


def _what_it_is(waveform: FloatArray) -> str | None:
    """None: speech, as far as can be told."""
    sound = without_rumble(waveform)
    level = float(held_levels(levels_db(sound)).max())
    if level < LEAST_LEVEL_DB:
        return "it is silent; two channels that are mixed may cancel each other out"
    power = _power_spectra(sound, level)
    if len(power) < _LEAST_FRAMES:
        return "only short clicks"
    if float(np.median(np.sort(power, axis=1)[:, -TONE_BINS:].sum(axis=1) / power.sum(axis=1))) > MOST_TONAL:
        return "only tones"
    if _shape_change(power) < LEAST_CHANGE_DB:
        return "only a steady sound"
    return None


def _power_spectra(sound: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """[frames of about ``level``, bins from the lowest band on]."""
    padded = np.pad(sound, (0, max(0, _FFT - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    levels = 10.0 * np.log10(np.square(frames).mean(axis=1) + _TINY)
    frames = frames[(levels > level - _BELOW_DB) & (levels < level + _ABOVE_DB)]
    power = np.empty((len(frames), _FFT // 2 + 1 - _BAND_EDGES[0]))
    for block in tiles(len(frames), _BLOCK_FRAMES):
        power[block] = np.square(np.abs(np.fft.rfft(frames[block] * np.hanning(_FFT), axis=1)[:, _BAND_EDGES[0] :]))
    return power + _TINY


def _shape_change(power: NDArray[np.float64]) -> float:
    """How much the levels of bands vary over time against each other: dB, root mean square."""
    bands = np.add.reduceat(power, _BAND_EDGES - _BAND_EDGES[0], axis=1)[:, :-1] / np.diff(_BAND_EDGES)
    smooth = np.lib.stride_tricks.sliding_window_view(bands, _AVERAGED, axis=0).mean(axis=-1)
    shape = 10.0 * np.log10(smooth)
    shape = np.maximum(shape, shape.max(axis=1, keepdims=True) - _RANGE_DB)
    return float(np.sqrt((shape - shape.mean(axis=1, keepdims=True)).var(axis=0).mean()))
