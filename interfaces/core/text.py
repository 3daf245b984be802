"""Text as clients send it in pieces, made into the text that is spoken. Pure.

Two things go wrong at the cuts between pieces, and are put right here:

- tokenizers of voice agents send words with a blank after each, also Chinese ones (``"你好， " "今天"``): a single blank at a cut
  between two CJK characters is dropped;
- clients whose strings are UTF-16 may cut between the two halves of a character: the halves are joined.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

# Han, kana, bopomofo, and their punctuation and full-width forms. Korean has blanks between words and is no part of it.
_CJK = re.compile(
    "[\u2e80-\u303f\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff65\U00020000-\U0003ffff]"
)
_CJK_MARKS = "\u2018\u2019\u201c\u201d\u2014\u2026"  # quotation marks, dash and ellipsis, which Chinese shares with Latin scripts
_HALVES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Break:
    """Silence behind the text before it."""

    silence_ms: int


@dataclass(frozen=True)
class SpeedChange:
    """speed: of the text behind it."""

    speed: float


Item = str | Break | SpeedChange  # of an utterance


class PieceJoiner:
    """Pieces in, text to speak out; ``heard`` says how far the client's own characters are spoken."""

    def __init__(self) -> None:
        self.received = 0  # characters of the client, dropped ones included
        self._spoken = 0  # characters that were given out
        self._held = ""  # a high surrogate, or a blank whose right neighbour has not come
        self._last = ""  # the last character that was given out
        self._dropped: list[int] = []  # how many characters had been given out when one was dropped

    def push(self, piece: str) -> str:
        self.received += len(piece)
        text = _joined_halves(self._held + piece)
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        text = _without_halves(text)
        if text.startswith(" ") and len(text) > 1 and _needs_no_blank(self._last, text[1]):
            self._drop()
            text = text[1:]
        before = text[-2:-1] or self._last
        if text.endswith(" ") and not self._held and (_is_cjk(before) or _is_mark(before)):
            text, self._held = text[:-1], " "
        return self._give(text)

    def finish(self) -> str:
        """What is still held; the text ends here, or is spoken up to here."""
        held, self._held = self._held, ""
        return self._give(_without_halves(held))

    def heard(self, spoken: int) -> int:
        """Characters of the client that are spoken, given how many of those that were given out are (a lower bound of them)."""
        if spoken >= self._spoken:
            return self.received - len(self._held)
        return spoken + bisect.bisect_left(self._dropped, spoken)

    def _drop(self) -> None:
        self._dropped.append(self._spoken)

    def _give(self, text: str) -> str:
        self._spoken += len(text)
        self._last = text[-1:] or self._last
        return text


def _needs_no_blank(left: str, right: str) -> bool:
    one_is_cjk = _is_cjk(left) or _is_cjk(right)
    return one_is_cjk and all(_is_cjk(character) or _is_mark(character) for character in (left, right))


def _is_cjk(character: str) -> bool:
    return _CJK.match(character) is not None


def _is_mark(character: str) -> bool:
    return character != "" and character in _CJK_MARKS


def _joined_halves(text: str) -> str:
    """Surrogates that belong together, as the character that they stand for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if _has_halves(text) else text


def _without_halves(text: str) -> str:
    return _HALVES.sub(_REPLACEMENT, text)


def _has_halves(text: str) -> bool:
    return _HALVES.search(text) is not None
