"""Blanks, line ends and runs of marks as one voice reads them: a stage of the text preparation.

Runs of blanks are one; there are none at the start and the end of the text. A line that ends in a word without punctuation ends with a
pause: a full stop before an empty line, a comma where the next line looks like one of a list or a verse (a bullet, or after a short line a
capital or a digit). A dash between words and an ellipsis are a comma, an ellipsis before a capital or the end a full stop: the shipped
voice speaks a third of the words beside them wrong. Runs of one mark are one, rulers of ``#``, ``=``, ``*``, ``_``, ``-`` or ``~`` are
nothing, and between two words are at most ``MAX_MARKS`` marks, so that marks alone cannot become speech.

Nothing is held but a mark that may begin a ruler. A blank, and a full stop, is given out at once, so that the word before it can be spoken;
where what follows shows that there should be none, ``RETRACT`` takes it back, but only after a letter or a digit, which the mark after it
ends just as well: ids then depend on the text alone.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from bistream.text.characters import GAP, PAUSE, RETRACT, Emit, is_chinese

MAX_MARKS = 8
MAX_LISTED_LINE = 50  # characters of a line that is an item or a verse; longer ones were wrapped by a width
_DASH, _SHORT_DASH = "\u2014", "\u2013"
_PRONOUN = "I"
_RULERS = frozenset("#=*_-~" + _SHORT_DASH)
_SINGLE = frozenset(".!?,;:\u3002\uff01\uff1f\uff0c\u3001\uff1b\uff1a")  # a run of one of these is one
_ASKING = frozenset("!?\uff01\uff1f")
_CLOSING = frozenset(".,!?;:)]}")  # no blank before these where a character without a sound stood
_AFTER_LINE = frozenset("\"'([{\u201c\u2018")  # what a line may begin with
_NUMBER_SIGNS = frozenset(".+-~±≈≤≥>√№§")  # before the digits of a text's first number, as are those of currencies
_BEFORE_MONEY = frozenset("+-~±≈≤≥>")
_NOT_LEADING = frozenset("\"'([{<$&@%\u201c\u2018\u00a1\u00bf\uff08\u300a\u300c\u3010")
_MANY_DOTS = 3


class BlankJoiner:
    """One text."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = ""  # the last character that was given out and is no blank; empty: none yet
        self._before = ""  # the one before it, where no blank is between them
        self._covered = 0  # characters that were dropped since
        self._ruler: list[tuple[str, int]] = []  # of one mark, not given out yet
        self._leading: list[tuple[str, int]] = []  # signs right before, which a text does not begin with unless a number does
        self._blank = False  # a blank was given out after ``_last``
        self._gap = self._owed = False  # something without a sound stood there; a blank that has not been given out
        self._pauses = self._trails = self._ranges = False  # for one that is no line end; for an ellipsis; for a dash after a digit
        self._lines = 0  # line ends since ``_last``
        self._line_length = 0
        self._marks = 0  # since the last word
        self._run = 0  # of the mark ``_last``

    def feed(self, character: str, count: int) -> None:
        if self._ruler and (character != (mark := self._ruler[0][0]) or mark == _PRONOUN):
            self._end_ruler(character)
        if character in _RULERS or (character == _PRONOUN and self._lines == 1):
            if len(self._ruler) < _MANY_DOTS:
                self._ruler.append((character, count))
            else:
                self._ruler[-1] = character, self._ruler[-1][1] + count
        else:
            self._take(character, count)

    def finish(self, is_end: bool) -> None:
        if self._ruler:
            self._end_ruler("")
        if self._trails and is_end:
            self._emit(RETRACT, 0)
            self._flush(".")
            self._blank = False
        if self._covered:
            self._emit("", self._covered)
        if self._blank and is_end:
            self._emit(RETRACT, 0)
        self._covered = self._lines = self._marks = 0
        self._blank = self._gap = self._owed = self._pauses = self._trails = self._ranges = False
        self._leading = []
        self._last, self._before = self._last and GAP, ""

    # -- inside ------------------------------------------------------------------------------------------------------

    def _end_ruler(self, following: str) -> None:
        """following: the character after it, which is another one; empty at an end."""
        ruler, self._ruler = self._ruler, []
        mark, length = ruler[0][0], len(ruler)
        if mark == _PRONOUN and not following.isalpha():
            self._lines = 0  # its capital says nothing about the line
        instead = self._meaning(mark, length, following)
        if instead is None:
            for character, count in ruler:
                self._take(character, count)
        else:
            self._take(instead, sum(count for _, count in ruler))

    def _meaning(self, mark: str, length: int, following: str) -> str | None:
        """What is spoken instead of so many of a mark: a pause, a gap, nothing at all; None: the marks themselves."""
        if mark == _PRONOUN:
            return None
        if mark == _SHORT_DASH and length == 1 and self._is_amount_before(following):
            return None
        begins_line = self._lines > 0 or not self._last
        is_after_word = self._last.isalnum() and not self._blank
        is_inside = is_after_word and following.isalnum()
        if begins_line and (length >= _MANY_DOTS or (mark in "*-" and following in (" ", GAP, PAUSE))):
            return PAUSE  # a ruler, a heading, a bullet
        if mark in "-\u2013" and not (is_inside and length == 1 and (mark == "-" or self._last.isdigit())):
            is_pause = length > 1 or mark == _SHORT_DASH or (self._blank and following == " " and not self._last.isdigit())
            return self._dash() if is_pause else None
        if mark in "*_":
            is_after_number = self._last.isdigit() and (is_inside or following == " ")
            is_operator = mark == "*" and (is_after_number or (self._blank and following == " "))
            if length == 1 and (is_operator or (mark == "_" and is_inside)):
                return None
            return GAP if is_inside and length == 1 else ""
        if mark == "~":
            return None if length == 1 else ""
        if mark == "#":
            return None if length == 1 and (following.isalnum() or is_after_word) else GAP
        return None if length < _MANY_DOTS else GAP

    def _is_amount_before(self, following: str) -> bool:
        """Whether a dash joins the ends of a range of percentages or of money."""
        is_number = following.isdigit() or _is_currency(following)
        return not self._blank and ((self._last == "%" and is_number) or (self._last.isalnum() and _is_currency(following)))

    def _dash(self) -> str:
        """A pause, unless numbers stand on both sides."""
        self._ranges = self._last.isdigit()
        return PAUSE

    def _take(self, character: str, count: int) -> None:
        if character == _DASH and not (is_chinese(self._last) or self._last == _DASH):
            character = self._dash()
        if character in (" ", "\n", GAP, PAUSE):
            self._leading = []
            self._space(character, count)
        elif character in ("", "`") or not self._admits(character, count):
            self._covered += count
        else:
            self._give(character, count)

    def _space(self, character: str, count: int) -> None:
        self._covered += count
        if not self._last:
            return
        self._gap |= character == GAP
        self._pauses |= character == PAUSE
        if character == "\n":
            self._lines += 1
        if self._blank or self._owed:
            return
        if character != " " and is_chinese(self._last):
            self._owed = True
        else:
            self._flush(" ")
            self._blank = True

    def _admits(self, character: str, count: int) -> bool:
        """Whether a character that is no blank is given out."""
        kind = _kind(character)
        if kind == "word":
            self._admit_word(character)
            return True
        if kind == "other":
            return True
        if not self._last:
            self._leading = [one for one in self._leading if one[0] in _BEFORE_MONEY and _is_currency(character)]
            if character not in _NOT_LEADING:
                self._leading.append((character, count))
                return False
            self._give_leading()
        if character == "." and self._trails:
            return False
        if character == self._last == "." and self._before.isalnum() and not self._blank:
            self._begin_ellipsis()
            return False
        self._marks += 1
        self._run = self._run + 1 if character == self._last and not self._blank else 1
        is_repeated = self._run > (_MANY_DOTS if character not in _SINGLE else 1)
        is_asked = character in _ASKING and self._marks > 2
        return not (is_repeated or is_asked or self._marks > MAX_MARKS)

    def _begin_ellipsis(self) -> None:
        """At its second full stop."""
        self._emit(RETRACT, 0)
        self._last, self._before = self._before, ""
        self._trails = True
        self._space(PAUSE, 0)

    def _admit_word(self, character: str) -> None:
        self._marks = self._run = 0
        if not self._last and character.isdigit():
            self._give_leading()
        self._leading = []

    def _give_leading(self) -> None:
        """Before a number."""
        leading, self._leading = self._leading, []
        if all(_is_number_sign(sign) for sign, _ in leading):
            self._covered -= sum(count for _, count in leading)
            for sign, count in leading:
                self._give(sign, count)

    def _give(self, character: str, count: int) -> None:
        had_blank = self._blank or self._owed
        if had_blank:
            self._end_blank(character)
        self._before = "" if had_blank else self._last
        self._flush(character, count)
        self._last = character
        self._line_length += 1

    def _end_blank(self, following: str) -> None:
        pause = self._pause(following)
        if self._owed:
            if pause:
                self._flush({",": "\uff0c", ".": "\u3002"}[pause])
            elif not (is_chinese(following) or self._lines):
                self._flush(" ")
        elif self._ranges and self._lines == 0 and following.isdigit():
            self._flush(_SHORT_DASH)
            self._flush(" ")
        elif pause:
            self._emit(RETRACT, 0)
            self._flush(pause)
            self._flush(" ")
        elif (self._gap or self._pauses) and following in _CLOSING and self._last.isalnum():
            self._emit(RETRACT, 0)
        if self._lines:
            self._line_length = 0
        self._blank = self._gap = self._owed = self._pauses = self._trails = self._ranges = False
        self._lines = 0

    def _pause(self, following: str) -> str:
        """What a line end is to the voice before this character: ``.``, ``,`` or nothing."""
        is_opening = following in _AFTER_LINE or _is_currency(following)
        if not (self._lines or self._pauses) or not self._last.isalnum() or not (following.isalnum() or is_opening):
            return ""
        if self._lines != 1:
            return "." if self._lines or (self._trails and following.isupper()) else ","
        if self._pauses or (is_chinese(self._last) and is_chinese(following)):
            return ","
        looks_listed = following.isupper() or following.isdigit() or is_opening
        return "," if looks_listed and self._line_length <= MAX_LISTED_LINE else ""

    def _flush(self, character: str, count: int = 0) -> None:
        self._emit(character, count + self._covered)
        self._covered = 0


def _is_number_sign(character: str) -> bool:
    return character in _NUMBER_SIGNS or _is_currency(character)


def _is_currency(character: str) -> bool:
    return bool(character) and unicodedata.category(character) == "Sc"


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    """word: a letter or a digit; mark: punctuation or a symbol; other: what belongs to the character before it."""
    if character.isalnum():
        return "word"
    return "mark" if unicodedata.category(character)[0] in "PS" else "other"
