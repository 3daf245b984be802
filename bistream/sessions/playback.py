"""Models the listener: how much audio is still unplayed, and which part of the text has been spoken. Pure arithmetic.

The orchestrator reports what it sends; hop sizes and the back-pressure on unplayed audio depend on the result.

Which character is being spoken is an estimate. The duration of a text is estimated by weights: a Latin letter is 1, other characters as
below, in the proportion of usual speaking rates (15 letters, spaces included, or 4.5 Chinese characters per second; a pause of 0.2 s at a
comma, of 0.4 s at a full stop). A voice speaks at the pace of its recording. That gives a position for a number of
speech tokens, which is kept

- below the text that the model had been given when it made these tokens (text in pieces: a block of speech follows each block of text),
- above the text that is certainly spoken,
- and, once the last token is known, in proportion to the whole: only the distribution over the text is estimated then.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from bistream.families.audio_format import AudioFormat
from bistream.types import FinishReason, SpeechTokens, VoicePrompt

LETTERS_PER_SECOND = 15.0
WIDE_WEIGHT = 3.3  # Chinese, Japanese, Korean: a syllable or more
DIGIT_WEIGHT = 4.0  # is read as a word, but shares it with its neighbours
COMMA_WEIGHT, STOP_WEIGHT = 3.0, 6.0
COMMAS, STOPS = frozenset(",;:、，；："), frozenset(".!?。！？…")
PACE_RANGE = (0.5, 2.0)  # of a voice, in usual paces: a wrong transcript would give a meaningless pace


def weight_of(character: str) -> float:
    """Time to speak it, measured in Latin letters."""
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


class Playback:
    """A listener that starts playing when the first chunk is sent and plays at 1x, pausing on an underrun."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self.samples_sent = 0
        self._ends_at: float | None = None  # when everything sent so far has been played
        self.underruns = 0
        self.underrun_s = 0.0
        self.longest_underrun_s = 0.0

    def sent(self, samples: int, now: float) -> None:
        starts_at = now if self._ends_at is None else max(now, self._ends_at)
        if self._ends_at is not None and starts_at > self._ends_at:
            self._ran_dry(starts_at - self._ends_at)
        self._ends_at = starts_at + samples / self._sample_rate
        self.samples_sent += samples

    def _ran_dry(self, seconds: float) -> None:
        self.underruns += 1
        self.underrun_s += seconds
        self.longest_underrun_s = max(self.longest_underrun_s, seconds)

    def buffer_s(self, now: float) -> float:
        """Seconds of unplayed audio; 0.0 before the first chunk and during a gap."""
        return 0.0 if self._ends_at is None else max(0.0, self._ends_at - now)


@dataclass(frozen=True)
class _Mark:
    """Speech tokens up to a message; characters certainly spoken with them; characters that the model had been given; the character that
    the last token speaks, where the model tells; tokens that fill breaks, in which nothing is spoken; tokens up to the last other one."""

    tokens: int
    consumed: int
    fed: int
    attended: int | None = None
    filling: int = 0
    speech_end: int = 0


class SpokenText:
    """Maps audio to text: speech token i covers the samples [m i, m (i + 1)) of a session, so n samples hold n // m whole tokens (m:
    ``samples_per_token``, 960 in CosyVoice).

    That is true whatever the stages hold back (3 lookahead tokens, 3840 samples of vocoder overlap), because output samples are counted.
    """

    def __init__(self, effort: SpokenEffort, audio_format: AudioFormat) -> None:
        """effort: of the session's text."""
        self._effort = effort
        self._format = audio_format
        self._pace = usual_pace(audio_format)
        self._marks: list[_Mark] = []  # ascending
        self._total: tuple[int, int] | None = None  # tokens and characters, once the last token has come and all text is in them

    @property
    def tokens(self) -> int:
        """Speech tokens that have come."""
        return self._marks[-1].tokens if self._marks else 0

    def voice_ready(self, prompt: VoicePrompt) -> None:
        self._pace = pace_of(prompt.prompt_text, len(prompt.speech_tokens), self._format)

    def tokens_came(self, message: SpeechTokens) -> None:
        """Record a message: ``text_consumed`` characters are spoken once all tokens up to this one are that fill no break at its end."""
        before = self._marks[-1] if self._marks else _Mark(0, 0, 0)
        consumed = max(message.text_consumed, before.consumed)
        filling = before.filling + sum(one.tokens for one in message.breaks)
        spoken = len(message.token_ids)
        for one in reversed(message.breaks):
            spoken = one.place if one.place + one.tokens == spoken else spoken
        speech_end = before.tokens + spoken if spoken else before.speech_end
        tokens = before.tokens + len(message.token_ids)
        self._marks.append(_Mark(tokens, consumed, message.text_fed, message.text_attended, filling, speech_end))
        if message.finish_reason is FinishReason.EOS:
            self._total = self.tokens - filling, consumed

    def characters(self, samples: int, is_last: bool) -> int:
        """Characters certainly spoken in ``samples`` samples. ``is_last``: no audio follows."""
        count = (
            len(self._marks)
            if is_last
            else bisect_right(self._marks, samples // self._format.samples_per_token, key=lambda mark: mark.speech_end)
        )
        return self._marks[count - 1].consumed if count else 0

    def position(self, samples: int, is_last: bool) -> int:
        """The character that is spoken at the end of ``samples`` samples: an estimate, at least ``characters``."""
        if is_last and self._total is not None:
            return self._total[1]
        tokens = samples / self._format.samples_per_token
        index = bisect_left(self._marks, tokens, key=lambda mark: mark.tokens)
        fed = self._marks[min(index, len(self._marks) - 1)].fed if self._marks else 0
        lower = self.characters(samples, is_last)
        bounds = lower, max(lower, fed)
        attended = self._attended(index, tokens)
        if attended is not None:
            return max(bounds[0], min(bounds[1], round(attended)))
        filling = self._marks[min(index, len(self._marks) - 1)].filling if self._marks else 0
        spoken = max(0.0, tokens - filling)
        return position(self._effort, spoken, self._pace, self._total, bounds)

    def _attended(self, index: int, tokens: float) -> float | None:
        """Between what the messages before and after so many tokens say. index: of the latter."""
        if index >= len(self._marks) or (after := self._marks[index]).attended is None:
            return None
        before = self._marks[index - 1] if index else _Mark(0, 0, 0)
        share = (tokens - before.tokens) / max(1, after.tokens - before.tokens)
        return (before.attended or 0) + share * (after.attended - (before.attended or 0))
