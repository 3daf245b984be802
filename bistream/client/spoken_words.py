"""The words of a text that grows, each with its time, as soon as its audio has come: what voice agents tell their language model was said.

The times are estimates, as the positions are from which they are made.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

# A character of a script without spaces between words counts as one: Chinese, Japanese.
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_IS_CJK = re.compile(rf"[{_CJK}]")
WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_WORD_WITH_BLANKS = re.compile(rf"\s*(?:[{_CJK}][^\w\s]*|[^\s{_CJK}]+)")  # those before it; all words one after another are the text
# Spoken in no text, SSML or not. As long as the text grows, a tag may go on.
_TAG_BEGUN = r"</?(?:speak|p|s|break|sub|phoneme|say-as|prosody)(?:\s(?:\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^<>\"'])*|/)?"
_TAG, _TAG_SO_FAR = re.compile(_TAG_BEGUN + ">"), re.compile(_TAG_BEGUN + r"(?:>|\Z)")
_TO_LAST_LETTER = re.compile(r".*\w", re.DOTALL)


@dataclass(frozen=True)
class SpokenWord:
    """text: with the punctuation behind it, without SSML's tags. begin, end: in characters of the text, without blanks. begin_s, end_s: in
    the audio; it ends with its last letter or digit, because the punctuation behind it is a pause."""

    text: str
    begin: int
    end: int
    begin_s: float
    end_s: float

    @property
    def has_own_spaces(self) -> bool:
        """Of a script that puts no blanks between words."""
        return _IS_CJK.search(self.text) is not None


class SpokenWords:
    """Of one text, whose audio begins at ``begin_s``. Between two positions the time is proportional to the characters."""

    def __init__(self, begin_s: float = 0.0, pattern: re.Pattern[str] = _WORD_WITH_BLANKS) -> None:
        """pattern: of a word, with blanks at most before it; SSML's tags are blanks to it, so that characters keep their places."""
        self.text = ""  # all of it so far; the caller lets it grow
        self._pattern = pattern
        self._cuts: list[int] = []  # places where a word ends though no blank follows
        self._told = 0  # characters whose words are out
        self._positions, self._seconds = [0], [begin_s]  # of the voice

    def cut(self) -> None:
        """What follows is spoken apart from the text so far."""
        self._cuts.append(len(self.text))

    def push(self, position: int, duration_s: float, begin_s: float | None = None) -> list[SpokenWord]:
        """The words that are complete once this audio has been played. position: characters up to which the voice is at its end; begin_s:
        of the audio, where a pause may have been before it."""
        if begin_s is not None:
            self._mark(self._positions[-1], begin_s)
        self._mark(position, self._seconds[-1] + duration_s)
        return self._words(is_over=False)

    def settle(self) -> list[SpokenWord]:
        """The words up to where the voice is, also the last one of the text so far: what follows begins another."""
        return self._words(is_over=True)

    def finish(self) -> list[SpokenWord]:
        """What is left: all of the text is spoken."""
        self._mark(len(self.text), self._seconds[-1])
        return self._words(is_over=True)

    def _mark(self, position: int, second: float) -> None:
        self._positions.append(max(min(position, len(self.text)), self._positions[-1]))
        self._seconds.append(max(second, self._seconds[-1]))

    def _words(self, is_over: bool) -> list[SpokenWord]:
        found: list[SpokenWord] = []
        self._cuts = [cut for cut in self._cuts if cut > self._told]
        tags = _TAG if is_over else _TAG_SO_FAR
        text, ends = tags.sub(lambda tag: " " * len(tag.group()), self.text), [*self._cuts, len(self.text)]
        for begin, end in zip([self._told, *ends], ends, strict=False):
            for match in self._pattern.finditer(text, begin, begin + len(text[begin:end].rstrip())):  # blanks before nothing take long
                may_grow = match.end() == len(self.text) and end not in self._cuts and not is_over
                if may_grow or match.end() > self._positions[-1]:
                    return found
                found.append(self._word(match))
                self._told = match.end()
                self._forget()
        return found

    def _word(self, match: re.Match[str]) -> SpokenWord:
        begin = match.end() - len(match.group().lstrip())
        letters = _TO_LAST_LETTER.match(match.group())
        end = match.end() if letters is None else match.start() + letters.end()
        written = _TAG.sub("", self.text[match.start() : match.end()])
        return SpokenWord(written, begin, match.end(), self._time(begin, is_begin=True), self._time(end, is_begin=False))

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
