"""Whether a text is written in a script of the checkpoint's languages: the model would speak any other as gibberish. Pure.

Languages that share a script cannot be told apart here, and are not. What is said of a text depends on the text alone, not on its cuts.
"""

from __future__ import annotations

import copy
import functools
import unicodedata
from typing import Self

from bistream.errors import InvalidInputError

FOREIGN_LETTERS = 8  # more than the letters of the checkpoint's scripts that are near them: a foreign word, but no sentence, goes through
NEAR_LETTERS = 40  # earlier letters of the checkpoint's scripts than these excuse nothing
_LATIN = """af az bs ca cs cy da de en es et eu fi fr ga gl ha hr hu id is it lt lv mg ms mt nb nl nn no pl pt ro sk sl so sq sv sw tl tr uz
vi xh yo zu"""
# By ISO 639-1 codes, with the first word of the letters' names in Unicode.
_SCRIPTS: dict[str, frozenset[str]] = {
    **{code: frozenset({"LATIN"}) for code in _LATIN.split()},
    **{code: frozenset({"CYRILLIC"}) for code in "be bg kk ky mk mn ru tg uk".split()},
    **{code: frozenset({"ARABIC"}) for code in "ar fa ps ug ur".split()},
    **{code: frozenset({"DEVANAGARI"}) for code in "hi mr ne sa".split()},
    **{code: frozenset({"BENGALI"}) for code in "as bn".split()},
    **{code: frozenset({"HEBREW"}) for code in "he yi".split()},
    **{code: frozenset({"ETHIOPIC"}) for code in "am ti".split()},
    "sr": frozenset({"CYRILLIC", "LATIN"}),
    "el": frozenset({"GREEK"}),
    "hy": frozenset({"ARMENIAN"}),
    "ka": frozenset({"GEORGIAN"}),
    "gu": frozenset({"GUJARATI"}),
    "pa": frozenset({"GURMUKHI"}),
    "kn": frozenset({"KANNADA"}),
    "ml": frozenset({"MALAYALAM"}),
    "si": frozenset({"SINHALA"}),
    "ta": frozenset({"TAMIL"}),
    "te": frozenset({"TELUGU"}),
    "km": frozenset({"KHMER"}),
    "lo": frozenset({"LAO"}),
    "my": frozenset({"MYANMAR"}),
    "th": frozenset({"THAI"}),
    "zh": frozenset({"CJK", "BOPOMOFO"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA"}),
    "ko": frozenset({"HANGUL", "CJK"}),
}


class ScriptGuard:
    """Follows one session's text."""

    def __init__(self, languages: frozenset[str] = frozenset()) -> None:
        """languages: as in ``ModelCard``. Without one, and with one that is not known here, every text passes."""
        self._languages = languages
        self._scripts = frozenset().union(*(_SCRIPTS[one] for one in languages)) if languages <= _SCRIPTS.keys() else frozenset[str]()
        self._own = self._foreign = 0  # letters of the whole text
        self._balance = 0  # own letters less foreign ones, where the text is now

    def copy(self) -> Self:
        """For a piece that may still be refused."""
        return copy.copy(self)

    def push(self, characters: str, is_end: bool) -> None:
        """Raises ``InvalidInputError`` at the letter that makes the text foreign, and at the end of one that mostly is (two thirds); the
        object is of no use afterwards."""
        if not self._scripts:
            return
        for character in characters:
            script = _script_of(character)
            if script in self._scripts:
                self._own += 1
                self._balance = min(self._balance + 1, NEAR_LETTERS)
            elif script:
                self._foreign += 1
                self._balance -= 1
                if self._balance <= -FOREIGN_LETTERS:
                    raise self._refusal()
        if is_end and self._foreign > 2 * self._own:
            raise self._refusal()

    def _refusal(self) -> InvalidInputError:
        spoken = ", ".join(sorted(self._languages))
        return InvalidInputError(
            f"The text is in a script of languages that this checkpoint does not speak; send text in what it speaks ({spoken})."
        )


@functools.lru_cache(maxsize=4096)
def _script_of(character: str) -> str:
    """The first word of a letter's name; empty for what is no letter, or one of no script."""
    plain = unicodedata.normalize("NFKC", character)[:1]  # full-width and mathematical letters are those that they look like
    if unicodedata.category(plain) not in ("Lu", "Ll", "Lt", "Lo"):
        return ""
    return unicodedata.name(plain, "").partition(" ")[0].partition("-")[0]
