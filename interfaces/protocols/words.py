"""When each word is spoken, told while the audio is made: estimates, as the servers' ``text_position`` is. Pure."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from bistream.client.word_times import WORD, end_of


@dataclass(frozen=True)
class Word:
    """begin, end: in characters of the text; begin_ms, end_ms: in the audio, see ``word_times.end_of``."""

    text: str
    begin: int
    end: int
    begin_ms: float
    end_ms: float


class WordTimes:
    """One text, from ``begins_ms`` in the audio on. Between two positions the time is proportional to the characters."""

    def __init__(self, begins_ms: float = 0.0) -> None:
        self._text = ""
        self._cuts: list[int] = []  # places where a word ends though no blank follows
        self._told = 0  # characters up to the end of the last word that was given out
        self._positions, self._times_ms = [0], [begins_ms]  # of the voice, at the ends of pieces of audio

    def append(self, text: str) -> None:
        self._text += text

    def cut(self) -> None:
        """What follows is spoken apart from the text so far."""
        self._cuts.append(len(self._text))

    def next(self, duration_ms: float, position: int) -> list[Word]:
        """The words that end in this audio. position: characters up to which the voice is at its end."""
        self._advance(self._times_ms[-1] + duration_ms, min(position, len(self._text)))
        return self._words(is_over=False)

    def settle(self) -> list[Word]:
        """The words up to where the voice is, also the last one of the text so far: what follows begins another."""
        return self._words(is_over=True)

    def finish(self) -> list[Word]:
        """The rest: all of the text has been spoken."""
        self._advance(self._times_ms[-1], len(self._text))
        return self._words(is_over=True)

    def _advance(self, time_ms: float, position: int) -> None:
        if position > self._positions[-1]:
            self._positions.append(position)
            self._times_ms.append(time_ms)
        else:
            self._times_ms[-1] = time_ms  # the voice stands still: what follows is spoken later

    def _words(self, is_over: bool) -> list[Word]:
        found: list[Word] = []
        self._cuts = [cut for cut in self._cuts if cut > self._told]
        ends = [*self._cuts, len(self._text)]
        for begin, end in zip([self._told, *ends], ends, strict=False):
            for match in WORD.finditer(self._text, begin, end):
                may_grow = match.end() == len(self._text) and end not in self._cuts and not is_over
                if may_grow or match.end() > self._positions[-1]:
                    return found
                found.append(Word(match.group(), *match.span(), self._time_of(match.start()), self._time_of(end_of(match))))
                self._told = match.end()
        return found

    def _time_of(self, position: int) -> float:
        right = bisect.bisect_left(self._positions, position)
        if self._positions[right] == position:
            return self._times_ms[right]
        (left_at, right_at), (left_ms, right_ms) = self._positions[right - 1 : right + 1], self._times_ms[right - 1 : right + 1]
        return left_ms + (right_ms - left_ms) * (position - left_at) / (right_at - left_at)
