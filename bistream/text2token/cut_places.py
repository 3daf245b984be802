"""Where a text may be cut, token by token: after a sentence, a clause, a word. Pure; it depends on the tokens alone.

A place is known when the next token is: ``3.14``, ``example.com`` and the quotation mark behind a full stop look like the end of a
sentence until then.
"""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Callable

_KEPT = 32  # characters that are looked at
_CLOSING = "\"'”’»›)]}」』》）】"
_ENDS, _WIDE_ENDS = ".!?…", "。！？｡"
_PAUSES, _WIDE_PAUSES = ",;:—–", "，、；：､"
_LAST_WORD = re.compile(r"(?:^|[^\w.])(\w+(?:\.\w+)*)\.$")
_ABBREVIATIONS = frozenset("mr mrs ms dr prof st mt sr jr vs no fig vol approx ca gen col capt lt sgt rev hon e.g i.e cf al".split())
_SHORT_NUMBER = 2  # digits of a number whose dot is that of a list


class Place(enum.IntEnum):
    INSIDE_CHARACTER = 0
    INSIDE_WORD = 1
    WORD = 2
    CLAUSE = 3
    SENTENCE = 4


class CutPlaces:
    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """bytes_of: as in ``SpeechLengths``."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before = ""

    def before(self, token_id: int) -> Place:
        """The place between the tokens so far and this one, which is one of them then."""
        piece = self._bytes_of(token_id)
        is_inside = bool(self._decoder.getstate()[0])
        text = self._decoder.decode(piece)
        place = Place.INSIDE_CHARACTER if is_inside else place_between(self._before, text or _guess(piece))
        self._before = (self._before + text)[-_KEPT:]
        return place


def place_between(before: str, following: str) -> Place:
    """before: the last characters of a text, none at its beginning. following: the next ones, as many as are known, or none."""
    if not before or not following or following[0] in _CLOSING:
        return Place.INSIDE_WORD
    is_blank = following[0].isspace()
    if before[-1] == "\n":
        return Place.INSIDE_WORD if is_blank else Place.SENTENCE
    spoken = before.rstrip(_CLOSING) or before
    last = spoken[-1]
    if last in _WIDE_ENDS:
        return Place.INSIDE_WORD if following[0] in _WIDE_ENDS + _ENDS else Place.SENTENCE
    if last in _WIDE_PAUSES:
        return Place.CLAUSE
    if is_blank and last in _ENDS:
        if spoken != before and following.strip()[:1].islower():  # "Why?" he asked
            return Place.CLAUSE
        return Place.WORD if last == "." and _is_dot_within(spoken) else Place.SENTENCE
    if is_blank and last in _PAUSES:
        return Place.CLAUSE
    return Place.WORD if is_blank or _is_wide(last) or _is_wide(following[0]) else Place.INSIDE_WORD


def _is_dot_within(text: str) -> bool:
    """Whether the dot at the end is one of an abbreviation, an initial or the number of a list."""
    found = _LAST_WORD.search(text)
    if found is None:
        return False
    word = found[1].lower()
    is_short = len(word) <= _SHORT_NUMBER if word.isdigit() else len(word) == 1 or "." in word
    return is_short or word in _ABBREVIATIONS


def _is_wide(character: str) -> bool:
    """Of a script without blanks between its words, or nearly so."""
    return "\u0e00" <= character <= "\u0eff" or "\u2e80" <= character <= "\ua4cf" or "\U00020000" <= character <= "\U0003ffff"


def _guess(piece: bytes) -> str:
    """A character of which only the first bytes are known: an ideograph, or nothing (a quotation mark may close a sentence)."""
    return "\u4e00" if piece and 0xE4 <= piece[0] <= 0xE9 else ""
