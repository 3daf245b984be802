"""A recording becomes what the networks expect of one: speech alone, not too loud, and a little silence after it.

The released models' own page prepares recordings before they become a voice (upstream's webui.py up to December 2025, ``postprocess``):
silence at both ends goes (librosa's trim: 60 dB below the loudest frame), peaks above 0.8 are scaled down to it, and 0.2 s of silence
follow; here only where something was taken away. Real rooms are louder than -60 dB, so noise before and after the speech goes as well,
where there is half a second of it or more: 1.5 s of it make the model lose words, 0.4 s do not.
"""

from __future__ import annotations

import numpy as np

from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError
from bistream.types import FloatArray
from bistream.voice.levels import HOP, Levels, held_levels, levels_db, steady_level, without_rumble
from bistream.voice.speech_presence import require_speech

SILENCE_DB = 60.0  # below the loudest frame
LOUD_DB = 12.0  # within so much of the loudest speech, sound that is held is speech, whatever comes before it
NOISE_MARGIN_DB = 8.0  # so much above the room's noise it is speech, too
WEAKEST_DB = 45.0  # so far below the loudest speech it is none: weak consonants are 30 to 40 dB below a vowel
MARGIN_S = 0.1  # that stays before and after what was found: the burst of a plosive, the end of a fricative
MOST_PEAK = 0.8
SILENCE_AFTER_S = 0.2


def condition_reference(waveform: FloatArray, config: RuntimeConfig) -> FloatArray:
    """The recording of a voice as the networks are to hear it; as it is where ``config.condition_recordings`` is false.

    waveform float32 [N], checked, 16 kHz. Raises ``InvalidInputError`` where nobody speaks in it, or for too short a time.
    """
    if not config.condition_recordings:
        return waveform
    speech = speech_of(waveform, config)
    if len(speech) == len(waveform):
        return speech  # its maker has cut it; silence behind it costs words where the recording is short
    most = int(config.max_reference_s * REFERENCE_SAMPLE_RATE)  # the networks take no more
    silence = max(0, min(round(SILENCE_AFTER_S * REFERENCE_SAMPLE_RATE), most - len(speech)))
    return np.concatenate([speech, np.zeros(silence, np.float32)])


def speech_of(waveform: FloatArray, config: RuntimeConfig) -> FloatArray:
    """The same without the silence after it."""
    require_speech(waveform, "The reference recording")
    speech = waveform[speech_span(waveform)]
    duration_s = len(speech) / REFERENCE_SAMPLE_RATE
    if duration_s < config.min_reference_s:
        raise InvalidInputError(
            f"The reference recording has {duration_s:.2f} s of speech between its silences; send at least {config.min_reference_s:g} s."
        )
    peak = float(np.abs(speech).max())
    return speech * np.float32(MOST_PEAK / peak) if peak > MOST_PEAK else speech


def check_source(waveform: FloatArray, config: RuntimeConfig) -> None:
    """A recording whose words are to be spoken keeps its timing, as in upstream's ``inference_vc``. Raises ``InvalidInputError`` where
    nobody speaks in it."""
    if config.condition_recordings:
        require_speech(waveform, "The recording in source_wav")


def speech_span(waveform: FloatArray) -> slice:
    """Without the silence and noise at both ends. Sound within ``LOUD_DB`` of the loudest speech that is held for 70 ms stays."""
    begin, end = silence_span(waveform)
    levels, margin = levels_db(without_rumble(waveform[begin:end])), round(MARGIN_S * REFERENCE_SAMPLE_RATE)
    first, last = _frames_before_speech(levels), len(levels) - 1 - _frames_before_speech(levels[::-1])
    return slice(begin + max(0, first * HOP - margin), min(end, begin + last * HOP + margin))


def silence_span(waveform: FloatArray) -> tuple[int, int]:
    """Begin and end as of ``librosa.effects.trim(waveform, top_db=60, frame_length=440, hop_length=220)``."""
    levels = levels_db(waveform)
    loud = np.flatnonzero(levels - levels.max() > -SILENCE_DB)
    return int(loud[0]) * HOP, min(len(waveform), (int(loud[-1]) + 1) * HOP)


def _frames_before_speech(levels: Levels) -> int:
    """Index of the first frame of speech."""
    held = held_levels(levels)
    loudest = float(held.max())
    certain = int(np.argmax(held >= loudest - LOUD_DB))
    if certain == 0:
        return 0
    threshold = max(steady_level(levels[:certain]) + NOISE_MARGIN_DB, loudest - WEAKEST_DB)
    return int(np.argmax(held >= min(threshold, loudest - LOUD_DB)))
