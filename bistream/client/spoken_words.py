"""The words of a text that grows, each with its time, as soon as its audio has come: what voice agents tell their language model was said.

The times are estimates, as the positions are from which they are made (``word_times.py`` does the same for a session that is over).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from bistream.client.word_times import end_of

# With the blanks before it; a character of a script without spaces between words counts as one.
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"\s*(?:[{_CJK}][^\w\s]*|[^\s{_CJK}]+)")
_IS_CJK = re.compile(rf"[{_CJK}]")


@dataclass(frozen=True)
class SpokenWord:
    """text: with the blanks before it and the punctuation behind it; all words one after another are the text. begin_s, end_s: on the clock
    of ``SpokenWords.push``; see ``word_times.end_of``."""

    text: str
    begin_s: float
    end_s: float

    @property
    def has_own_spaces(self) -> bool:
        """Of a script that puts no blanks between words."""
        return _IS_CJK.search(self.text) is not None


class SpokenWords:
    """Between two positions the time is proportional to the characters."""

    def __init__(self) -> None:
        self._told = 0  # characters whose words are out
        self._positions = [0]
        self._seconds = [0.0]

    def push(self, text: str, position: int, begin_s: float, end_s: float) -> list[SpokenWord]:
        """The words that are complete once audio has been played from begin_s to end_s. text: all of it so far; position: its character
        that is spoken at end_s, at most its length."""
        self._mark(self._positions[-1], begin_s)
        self._mark(max(position, self._positions[-1]), end_s)
        return self._words(text, is_over=False)

    def finish(self, text: str) -> list[SpokenWord]:
        """What is left: all of the text is spoken."""
        self._mark(max(len(text), self._positions[-1]), self._seconds[-1])
        return self._words(text, is_over=True)

    def _mark(self, position: int, second: float) -> None:
        self._positions.append(position)
        self._seconds.append(max(second, self._seconds[-1]))

    def _words(self, text: str, is_over: bool) -> list[SpokenWord]:
        found = []
        for match in _WORD.finditer(text, self._told):
            # The end of the text so far may be the middle of a word.
            if match.end() > self._positions[-1] or (match.end() == len(text) and not is_over):
                break
            begin = match.start() + len(match.group()) - len(match.group().lstrip())
            found.append(SpokenWord(match.group(), self._time(begin, is_begin=True), self._time(end_of(match), is_begin=False)))
            self._told = match.end()
        self._forget()
        return found

    def _time(self, position: int, is_begin: bool) -> float:
        """Where the position stands still, a word that begins there begins last, and one that ends there ends first."""
        after = (bisect_right if is_begin else bisect_left)(self._positions, position)
        if after >= len(self._positions):
            return self._seconds[-1]
        if after == 0:
            return self._seconds[0]
        left, right = self._positions[after - 1], self._positions[after]
        share = (position - left) / (right - left)
        return self._seconds[after - 1] + share * (self._seconds[after] - self._seconds[after - 1])

    def _forget(self) -> None:
        """Marks before the words that are still to come."""
        first = max(0, bisect_right(self._positions, self._told) - 1)
        del self._positions[:first], self._seconds[:first]
