"""Cuts text that is still growing into spans: what is read as written, and expressions that have to be read out as a whole.

Pure; used by ``normalization``. A span is normalised with the end of the text before it, and without what follows. The cutter looks at
one character after the other and never back, so its spans depend on the text only, not on the pieces in which it came, and what has
left it does not change. Held back are: an unfinished word (``5`` may become ``5th``), a bracket that may belong to a telephone, and an
expression together with the word or the character after it, which decides whether the expression goes on (``5 km``, ``May 5, 2024``,
``5月1日``). At most ``MAX_HELD_CHARS`` characters are held back.

**Language.** Of Chinese, if its sentence has shown an ideograph, up to the character that ends the expression; else of English, if it
has shown Latin letters; else as the sentence before. Sentences with letters of other scripts are left as they are. URLs, mail
addresses and names of files are English in any sentence.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from bistream.text.reading_context import REMEMBERED_CHARS, Language, is_counted_in_roman
from bistream.text.span_words import (
    CHINESE_JOINERS,
    MAX_JOINED_IDEOGRAPHS,
    ends_clause,
    is_abbreviation,
    is_electronic,
    is_joiner,
    is_number_like,
    opens_number,
)

MAX_HELD_CHARS = 64  # longer expressions (most are addresses) are cut; bounds the wait and the time of one call to the library
_SEPARATORS = frozenset('"<>\\`')  # never part of a word
_OPENING = "'[{*_"  # before a word and not part of it
_MAY_OPEN_NUMBER = frozenset("(（<>")  # part of what follows if that is a number, else as those above
_BEGINS_NUMBER = frozenset("+-=.$€£¥￥")
_AREA_CODE = re.compile(r"[(（]\+?\d{1,5}[)）]")
_DASHES = frozenset("–—‒‑")
_DRIVE = re.compile(r"[A-Za-z]:(?:\\|\Z)")
_OPEN_END = re.compile(r"(?:\s+[-–—−~/×*÷+=<>]+|[<>]+)\Z")  # a mark that no number followed
_NO_BEGINNING = _SEPARATORS | frozenset(_OPENING)
_CLOSING = "')]}*_"  # after a word and not part of it
_TAIL = re.compile(rf"[{re.escape(_CLOSING)}–—-][{re.escape(_CLOSING)}.,;:!?–—-]*\Z")
_SENTENCE_ENDS = "。！？!?\n"
_WIDE_NUMBER_SIGNS = "：．％＋－／＝～＄‰"  # full-width signs that stand inside numbers


@dataclass(frozen=True)
class Span:
    """language: None: read as written. before: of an expression: the end of the text before it."""

    text: str
    language: Language | None = None
    before: str = ""


class SpanCutter:
    """One text. forced: the language of all its expressions; None: found out. first: of a sentence that shows none, at the beginning."""

    def __init__(self, forced: Language | None = None, first: Language = "en") -> None:
        self._forced = forced
        self._previous: Language | None = first  # of the last sentence that has shown a script; None: neither
        self._shown: set[str] = set()  # scripts of the sentence so far: zh, en, other
        self._word = ""
        self._expression = ""  # complete words of an open expression
        self._blank = ""  # after the expression
        self._joined = 0  # ideographs at the end of the expression
        self._out: list[Span] = []
        self._before = ""  # the end of what has left

    def push(self, character: str) -> list[Span]:
        """The spans that this character decides; together they are the text without what is held back."""
        if self._word in _MAY_OPEN_NUMBER and not (character.isnumeric() or character.isspace() or character in _BEGINS_NUMBER):
            self._close()  # a mark of its own
            self._emit(self._word)
            self._word = ""
        if _is_word_character(character, self._word, bool(self._expression)):
            self._word += character
        else:
            is_compared = character in _MAY_OPEN_NUMBER and self._word[-1:].isnumeric()  # 5>3
            self._end_word()
            if is_compared:
                self._word = character
            else:
                self._take_separator(character)
        if len(self._expression) + len(self._blank) + len(self._word) >= MAX_HELD_CHARS:
            self._end_word()
            self._close()
        return self._take()

    def finish(self) -> list[Span]:
        """The rest. Called where the text ends or is interrupted by a special token; the cutter can go on after it."""
        self._end_word()
        self._close()
        return self._take()

    def _take(self) -> list[Span]:
        taken, self._out = self._out, []
        return taken

    def _emit(self, text: str, language: Language | None = None) -> None:
        if text:
            self._out.append(Span(text, language, self._before if language else ""))
            self._before = (self._before + text)[-REMEMBERED_CHARS:]

    def _take_separator(self, character: str) -> None:
        """A blank, an ideograph, a letter of another script or punctuation of its own."""
        if character.isspace() and character != "\n":
            if self._expression:
                self._blank += character
            else:
                self._emit(character)
            return
        if _is_ideograph(character):
            if self._expression and character in CHINESE_JOINERS and self._joined < MAX_JOINED_IDEOGRAPHS:
                self._shown.add("zh")
                self._extend(character)
                self._joined += 1
                return
            self._shown.add("zh")
        elif character.isalpha():
            self._shown.add("other")
        self._close()
        self._emit(character)
        if character in _SENTENCE_ENDS:
            self._end_sentence()

    def _end_word(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        is_short_form = is_abbreviation(word)
        if is_electronic(word):
            self._close()
            bare = word.rstrip(_CLOSING + ".,;:!?")
            self._emit(bare, "en")
            self._emit(word[len(bare) :])
        elif self._is_of_expression(word, is_short_form):
            if is_short_form:
                self._shown.add("en")
            bare = word if _AREA_CODE.fullmatch(word) else _TAIL.sub("", word) or word
            self._extend(bare)
            if bare != word:  # a bracket or a mark of emphasis ends the expression
                self._close()
                self._emit(word[len(bare) :])
        else:
            if any(character.isalpha() for character in word):
                self._shown.add("en")
            self._close()
            self._emit(word)
        if ends_clause(word):
            self._close()
            self._end_sentence()

    def _is_of_expression(self, word: str, is_short_form: bool) -> bool:
        if is_short_form or is_number_like(word) or opens_number(word):
            return True
        if self._expression:
            return is_joiner(word) and any(character.isnumeric() for character in self._expression)
        return is_counted_in_roman(word, self._before)

    def _extend(self, text: str) -> None:
        self._expression += self._blank + text
        self._blank = ""
        self._joined = 0 if len(text) > 1 or not _is_ideograph(text) else self._joined

    def _close(self) -> None:
        """Let the open expression go, and the blanks after it."""
        if self._expression:
            bare = _OPEN_END.sub("", self._expression)
            self._emit(bare, None if opens_number(bare) else self._language())
            self._emit(self._expression[len(bare) :])
        self._emit(self._blank)
        self._expression = self._blank = ""
        self._joined = 0

    def _language(self) -> Language | None:
        return self._forced or _language_of(self._shown, self._previous)

    def _end_sentence(self) -> None:
        self._previous = _language_of(self._shown, self._previous)
        self._shown.clear()


def _language_of(shown: set[str], previous: Language | None) -> Language | None:
    if "other" in shown:
        return None
    if "zh" in shown:
        return "zh"
    return "en" if "en" in shown else previous


def _is_ideograph(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or "\U00020000" <= character <= "\U0002ffff"


def _is_word_character(character: str, word: str, is_open: bool) -> bool:
    """Whether a character continues ``word`` (or begins one, where that is empty). is_open: an expression stands before it."""
    if not word and character in _MAY_OPEN_NUMBER:
        return True
    if not word and character == "*":
        return is_open
    if character == "\\":
        return _DRIVE.match(word) is not None
    if character == "）":
        return _AREA_CODE.fullmatch(f"{word})") is not None
    if character in _DASHES:
        return (is_open and not word) or any(one.isnumeric() for one in word)
    if character.isascii():
        return character.isprintable() and not character.isspace() and character not in (_SEPARATORS if word else _NO_BEGINNING)
    if character in _WIDE_NUMBER_SIGNS:
        return bool(word) and word[-1].isnumeric()
    if _is_ideograph(character):
        return False
    category = unicodedata.category(character)
    if category.startswith("L"):
        return character < "\u0250" or "\uff21" <= character <= "\uff5a"
    return category.startswith(("N", "S")) or (category.startswith("M") and bool(word)) or (character == "’" and bool(word))
