"""Which character is being spoken: an estimate from the text, the voice's pace and the blocks of the language model. Pure arithmetic.

The duration of a text is estimated by weights: a Latin letter is 1, other characters as below, in the proportion of usual speaking
rates (15 letters, spaces included, or 4.5 Chinese characters per second; a pause of 0.2 s at a comma, of 0.4 s at a full stop). A voice
speaks at the pace of its recording. That gives a position for a number of speech tokens, which is kept

- below the text that the model had been given when it made these tokens (text in pieces: a block of speech follows each block of text),
- above the text that is certainly spoken,
- and, once the last token is known, in proportion to the whole: only the distribution over the text is estimated then.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_left

from bistream.families.audio_format import AudioFormat

LETTERS_PER_SECOND = 15.0
WIDE_WEIGHT = 3.3  # Chinese, Japanese, Korean: a syllable or more
DIGIT_WEIGHT = 4.0  # is read as a word, but shares it with its neighbours
COMMA_WEIGHT, STOP_WEIGHT = 3.0, 6.0
COMMAS, STOPS = frozenset(",;:、，；："), frozenset(".!?。！？…")
PACE_RANGE = (0.5, 2.0)  # of a voice, in usual paces: a transcript that says something else is no measure


def weight_of(character: str) -> float:
    """How long it is spoken, in Latin letters."""
    if character in COMMAS:
        return COMMA_WEIGHT
    if character in STOPS:
        return STOP_WEIGHT
    if character.isdigit():
        return DIGIT_WEIGHT
    if character.isalpha():
        return WIDE_WEIGHT if unicodedata.east_asian_width(character) in "WF" else 1.0
    return 1.0 if character == " " else 0.0


def usual_pace(audio_format: AudioFormat) -> float:
    """Weight of a speech token."""
    return LETTERS_PER_SECOND / audio_format.tokens_per_second


def pace_of(transcript: str, speech_tokens: int, audio_format: AudioFormat) -> float:
    """Weight of a speech token in the voice of a recording; the usual one without a transcript."""
    usual = usual_pace(audio_format)
    if not transcript.strip() or speech_tokens == 0:
        return usual
    pace = sum(map(weight_of, transcript)) / speech_tokens
    return min(max(pace, PACE_RANGE[0] * usual), PACE_RANGE[1] * usual)


class SpokenEffort:
    """Weights of a growing text, added up: 8 bytes for each character."""

    def __init__(self) -> None:
        self._sums = array("d", [0.0])  # of the first i characters

    def push(self, text: str) -> None:
        for character in text:
            self._sums.append(self._sums[-1] + weight_of(character))

    @property
    def characters(self) -> int:
        return len(self._sums) - 1

    def until(self, characters: int) -> float:
        """Of the first ``characters``."""
        return self._sums[min(characters, self.characters)]

    def character_at(self, weight: float) -> int:
        """The character during which so much is spoken: how many have been begun by then."""
        return bisect_left(self._sums, weight)


def position(effort: SpokenEffort, tokens: float, pace: float, total: tuple[int, int] | None, bounds: tuple[int, int]) -> int:
    """Estimated characters spoken in ``tokens`` speech tokens.

    pace: ``pace_of`` the voice. total: speech tokens and characters of the whole session, once they are known. bounds: of the
    result, lower and upper.
    """
    weight = pace * tokens
    if total is not None and total[0]:
        weight = effort.until(total[1]) * min(1.0, tokens / total[0])
    lower, upper = bounds
    return max(lower, min(upper, effort.character_at(weight)))
