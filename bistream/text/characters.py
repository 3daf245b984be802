"""Single characters as a voice can use them: the first stage of the text preparation (``preparation.py``).

Compatibility forms of letters and digits become plain ones, typographic hyphens and quotes too, and all blanks and line ends are one of
each. Characters without a sound are dropped; an emoji or an arrow leaves a ``GAP``, which keeps the words beside it apart.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable

Emit = Callable[[str, int], None]  # a character, and how many characters of the caller's text it covers beyond those before it

# Marks between the stages. The text itself cannot hold them, because this stage drops control characters.
GAP = "\x1c"  # a blank where something without a sound stood; none beside blanks, before punctuation, and at the end of the text
PAUSE = "\x1d"  # a comma after a word, else a gap
RETRACT = "\x08"  # takes back the blank or full stop before it, which the tokenizer never decides before the character after it

_PLAIN = {
    **dict.fromkeys("\u2010\u2011\u2012\ufe63", "-"),
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
    **dict.fromkeys("\x0b\x0c\r\x1c\x1d\x1e\x85\u2028", "\n"),
    **dict.fromkeys("\t\x1f\u2800\u3164", " "),
    **dict.fromkeys("\u203c\u2757\u2755", "!"),
    **dict.fromkeys("\u2047\u2753\u2754", "?"),
    **{"\n": "\n", "\u2029": "\n\n", "\u2026": "...", "\u2048": "?!", "\u2049": "!?", "\u2015": "\u2014"},
    **dict.fromkeys("\u2022\u2023\u2043", PAUSE),  # bullets
    **dict.fromkeys("\u203b\u2020\u2021\u00b6\u2027", GAP),
}
_CHINESE_MARKS = frozenset("\u2018\u2019\u201c\u201d\u2026")  # which Chinese shares with Latin scripts, and which stay beside it
_OPENING = frozenset("\u2018\u201c")
_JOINERS = frozenset("\u200c\u200d")
_SYMBOLS_WITH_READING = frozenset("+<=>|~^`°℃℉№×÷±−≤≥≠≈∞√∑∏")
_COMPATIBLE = (
    *((0x2102, 0x2149), (0x2160, 0x217F), (0x2460, 0x24FF), (0x2776, 0x2793), (0xFB00, 0xFDFF), (0xFE70, 0xFEFC)),
    *((0xFF10, 0xFF19), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0xFF66, 0xFF9D), (0x1D400, 0x1D7FF), (0x1F100, 0x1F149), (0x1FBF0, 0x1FBF9)),
)
_ENCLOSED = 0x2460  # from here on, symbols among them are letters in circles and squares
_SQUARED_UNITS = ("\u3371", "\u33df")


class CharacterCleaner:
    """One text."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = ""  # the last character that was given out
        self._opening: tuple[str, int] | None = None  # a quotation mark before it is known what it opens
        self._after_return = False
        self._covered = 0  # characters that were dropped since

    def feed(self, character: str, count: int) -> None:
        if self._opening is not None:
            mark, covered = self._opening
            self._opening = None
            self._give(mark if is_chinese(character) else _PLAIN[mark], covered)
        count += self._covered
        self._covered = 0
        if character in _OPENING:
            self._opening = character, count
        elif character in _CHINESE_MARKS and is_chinese(self._last):
            self._emit(character, count)  # what follows stands among ideographs, too
        elif character in _JOINERS and _needs_joiners(self._last):
            self._give(character, count)
        elif character == "\n" and self._after_return:
            self._covered = count
        else:
            self._give(cleaned(character), count)
        self._after_return = character == "\r"

    def finish(self, is_end: bool) -> None:
        """is_end: the text ends; else a special token interrupts it."""
        if self._opening is not None:
            self._give(_PLAIN[self._opening[0]], self._opening[1])
            self._opening = None
        if self._covered:
            self._emit("", self._covered)
            self._covered = 0

    def _give(self, characters: str, count: int) -> None:
        if not characters:
            self._covered = count
            return
        self._last = characters[-1]
        for character in characters[:-1]:
            self._emit(character, 0)
        self._emit(self._last, count)


@functools.lru_cache(maxsize=4096)
def cleaned(character: str) -> str:
    """Its plain form, which does not depend on its place: itself, one or more other characters, ``GAP``, or nothing."""
    if " " <= character <= "~":
        return character
    if (plain := _PLAIN.get(character)) is not None:
        return plain
    category, code = unicodedata.category(character), ord(character)
    if (category[0] in "LN" or code >= _ENCLOSED) and any(first <= code <= last for first, last in _COMPATIBLE):
        return _folded(character)
    if category == "Zs":
        return " "
    if category in ("Cc", "Cf", "Me") or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
        return ""
    if category in ("Co", "Cs") or (category == "Cn" and code >= 0x1F000):
        return GAP
    if category in ("So", "Sk", "Sm") and not (character in _SYMBOLS_WITH_READING or _SQUARED_UNITS[0] <= character <= _SQUARED_UNITS[1]):
        return GAP
    return character


def _folded(character: str) -> str:
    """Plain letters or digits; itself where it has none."""
    folded = "".join(one for one in unicodedata.normalize("NFKC", character) if one not in "()")
    if folded == character and unicodedata.category(character) == "No":  # a number in a black circle, which has no compatibility form
        return f"{unicodedata.numeric(character):g}"
    return folded if all(unicodedata.category(one)[0] in "LNM" or one in " .," for one in folded) else character


def is_chinese(character: str) -> bool:
    """An ideograph, kana, or the punctuation and full-width forms that stand among them."""
    return (
        "\u2e80" <= character <= "\u9fff"
        or "\uf900" <= character <= "\ufaff"
        or "\uff01" <= character <= "\uff65"
        or character >= "\U00020000"
    )


def _needs_joiners(character: str) -> bool:
    """Of the scripts where a joiner changes a word: Arabic and its relatives, Indic ones, Burmese, Khmer, Mongolian."""
    return (
        "\u0600" <= character <= "\u08ff"
        or "\u0900" <= character <= "\u0dff"
        or "\u1000" <= character <= "\u109f"
        or "\u1780" <= character <= "\u18af"
    )
