"""What could be better about a recording of which a voice is made: sentences for ``bistream voices add``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.sessions.playback import LETTERS_PER_SECOND, PACE_RANGE, WIDE_WEIGHT, weight_of
from bistream.types import FloatArray
from bistream.voice.levels import HOP, held_levels, levels_db, without_rumble

SHORT_S, LONG_S = 3.0, 20.0
PAUSE_S = 1.0
PAUSE_DB = 25.0  # below the loudest speech
NOISE_MARGIN_DB = 8.0  # above the quietest tenth; a noisy pause is one, too
LOUD_DB = 12.0  # nothing closer to the loudest speech is a pause
CLIPPED_SHARE = 1e-3  # of the samples of clipped speech, at least, within CLIPPED_RANGE of the peak; of clean speech about 1e-4
CLIPPED_RANGE = 0.02


def advice(speech: FloatArray, transcript: str) -> Iterator[str]:
    """speech: float32 [N], 16 kHz, as conditioned, without the silence that follows it. Sentences."""
    duration_s = len(speech) / REFERENCE_SAMPLE_RATE
    if duration_s < SHORT_S:
        yield f"it has {duration_s:.1f} s of speech; a voice of less than {SHORT_S:g} s is less like the speaker, so record 3 to 10 s"
    if duration_s > LONG_S:
        yield f"it has {duration_s:.1f} s of speech; more than {LONG_S:g} s makes starts slower and the voice no better, so take 3 to 10 s"
    if clipped_share(speech) > CLIPPED_SHARE:
        yield "it is clipped, which is heard in the voice; record with a lower level"
    if (pause_s := longest_pause_s(speech)) > PAUSE_S:
        yield f"nobody speaks for {pause_s:.1f} s in the middle; the voice would pause alike, so cut the pause out"
    pace = sum(map(weight_of, transcript)) / duration_s / LETTERS_PER_SECOND
    if not PACE_RANGE[0] <= pace <= PACE_RANGE[1]:
        slow, fast = (limit * LETTERS_PER_SECOND for limit in PACE_RANGE)
        rates = f"{slow:g} to {fast:g} letters or {slow / WIDE_WEIGHT:.1f} to {fast / WIDE_WEIGHT:.0f} Chinese characters a second"
        yield (
            f"the transcript is too {'long' if pace > 1 else 'short'} for {duration_s:.1f} s of speech ({rates}); "
            "give every word of the recording, and no other"
        )


def clipped_share(speech: FloatArray) -> float:
    """Of the samples, those at the peak."""
    heights = np.abs(speech)
    return float((heights > (1.0 - CLIPPED_RANGE) * heights.max()).mean())


def longest_pause_s(speech: FloatArray) -> float:
    """Between words, of silence or steady noise."""
    levels = levels_db(without_rumble(speech))
    loudest = float(held_levels(levels).max())
    limit = min(max(loudest - PAUSE_DB, float(np.percentile(levels, 10)) + NOISE_MARGIN_DB), loudest - LOUD_DB)
    longest = max((sum(1 for _ in run) for is_quiet, run in groupby(levels < limit) if is_quiet), default=0)
    return longest * HOP / REFERENCE_SAMPLE_RATE
