"""What of a sound needs no other's network: pauses, clicks at joints, its length for its text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bistream.evaluation.seam_meter import measure_seams
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FloatArray

_FRAMES_PER_SECOND = 50
_QUIET = 0.01  # of the sound's loud frames (-40 dB)
_LOUD_PERCENTILE = 95
_MENDED_S = 0.001  # to each side of a joint
_RUNAWAY, _EARLY_END = 2.0, 0.5  # times the form's ordinary pace
_MISSING_UNITS, _MISSING_SHARE = 3, 0.25  # of which one is enough, at the text's end
_LENGTHS = SpeechLengths(lambda byte: bytes([byte]))


def ordinary_s(text: str) -> float:
    """Seconds of the text at an ordinary pace, by its characters."""
    return max(0.2, _LENGTHS.ordinary(list(text.encode())) / 25)


def longest_pause_s(waveform: FloatArray, rate: int) -> float:
    """waveform: float32 [N]. Between the first and the last loud frame; 0 for silence."""
    size = rate // _FRAMES_PER_SECOND
    levels = np.sqrt(np.mean(waveform[: len(waveform) // size * size].reshape(-1, size).astype(np.float64) ** 2, axis=1))
    if not levels.any():
        return 0.0
    loud = np.flatnonzero(levels > _QUIET * np.percentile(levels, _LOUD_PERCENTILE))
    return float(np.diff(loud, prepend=loud[:1] - 1).max(initial=1) - 1) / _FRAMES_PER_SECOND


def loudest_joint_db(waveform: FloatArray, joints: Sequence[int], rate: int) -> float | None:
    """The sharpest joint against the same sound with a line drawn across each joint: near 0 where a joint is as smooth as the speech
    around it. joints: sample positions. None: there are none."""
    margin = round(_MENDED_S * rate)
    inner = [joint for joint in joints if margin < joint < len(waveform) - margin]
    mended = waveform.copy()
    for joint in inner:
        mended[joint - margin : joint + margin] = np.linspace(
            waveform[joint - margin], waveform[joint + margin], 2 * margin, endpoint=False
        )
    return measure_seams(waveform, mended, inner).worst_click_db if inner else None


def lengths_flags(paces: Sequence[float], missing_ends: Sequence[tuple[int, int] | None]) -> list[tuple[bool, bool]]:
    """Whether each sentence of a form is a runaway, and whether it ends early.

    paces: seconds over ``ordinary_s``. missing_ends: units at the end of the text of which nothing was heard, and units; None: not judged.
    """
    usual = float(np.median(paces)) if len(paces) else 1.0
    flags = []
    for pace, missing in zip(paces, missing_ends, strict=True):
        is_cut = missing is not None and (missing[0] >= _MISSING_UNITS or missing[0] > _MISSING_SHARE * missing[1])
        flags.append((pace > _RUNAWAY * usual, pace < _EARLY_END * usual or is_cut))
    return flags
