"""Whether a session's text holds something to speak: letters and digits do, blanks, punctuation and special tokens do not. Pure.

Used where a session's text is counted (``sessions.request_checks``, ``text2token.text_session``): text without speech renews no
session, and special tokens in a row are bounded. The language model was trained on a few of them between words; given hundreds, it
speaks up to 20 speech tokens for each, minutes of noise that nobody asked for.
"""

from __future__ import annotations

import codecs
import copy
from typing import Self

from bistream.contract.checks import is_speakable
from bistream.errors import InvalidInputError
from bistream.text.special_tokens import SPECIAL_TOKENS, SpecialTokenFinder

MAX_SPECIAL_RUN = 20  # special tokens without a letter or a digit between them: as many as the vocabulary has
_FINDER = SpecialTokenFinder(SPECIAL_TOKENS)


class SpeakableText:
    """Follows one session's text. What it says depends on the text alone, not on its cuts: the start of a possible token is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._special_run = 0

    def copy(self) -> Self:
        """For a piece that may still be refused."""
        return copy.copy(self)

    def push(self, characters: str, final: bool) -> bool:
        """Whether these characters, and those held back, have something to speak. final: the text ends here.

        Raises ``InvalidInputError`` for more than ``MAX_SPECIAL_RUN`` special tokens in a row; the object is of no use afterwards.
        """
        text, is_speakable = self._held + characters, False
        while True:
            index, special = _FINDER.find(text, final)
            is_speakable |= self._take_plain(text[:index])
            if special is None:
                self._held = text[index:]
                return is_speakable
            self._take_special(special)
            text = text[index + len(special) :]

    def _take_plain(self, characters: str) -> bool:
        if not is_speakable(characters):
            return False
        self._special_run = 0
        return True

    def _take_special(self, special: str) -> None:
        self._special_run += 1
        if self._special_run > MAX_SPECIAL_RUN:
            raise InvalidInputError(
                f"The text has more than {MAX_SPECIAL_RUN} special tokens such as {special} in a row; send words between them."
            )


class SpeakableBytes:
    """``SpeakableText`` of UTF-8 that may be cut inside a character. What is not UTF-8 counts as text here; others refuse it."""

    def __init__(self) -> None:
        self._text = SpeakableText()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes, final: bool) -> bool:
        """As ``SpeakableText.push``; the object is unchanged where this raises."""
        text, state = self._text.copy(), self._decoder.getstate()
        try:
            is_speakable = text.push(self._decoder.decode(data, final), final)
        except InvalidInputError:
            self._decoder.setstate(state)
            raise
        self._text = text
        return is_speakable
