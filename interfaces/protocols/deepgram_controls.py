r"""Deepgram's controls in a text: ``\{"word": "Nguyen", "pronounce": "win"\}`` and ``\{pause:500ms\}``, also without the backslashes. Pure.

The vendor's pronunciations are IPA. Over HTTP they are entries of the lexicon, which must be whole when speech begins; sockets refuse them.
A respelling in plain letters is spoken in place of the word.
"""

from __future__ import annotations

import json
import re

from bistream.contract.checks import is_speakable
from bistream.contract.lexicon import joined_lexicon, written_lexicon
from bistream.errors import InvalidInputError
from interfaces.core.text import Break
from interfaces.core.values import Values
from interfaces.protocols.text_controls import ControlReader

MAX_CONTROL_CHARS = 512
PAUSES_MS, MAX_PAUSES = range(500, 3001), 8  # as the vendor has them
_CONTROL = re.compile(r'\\?\{\s*(?:pause:(?P<pause_ms>\d+)ms|(?P<fields>"word"[^{}]*?))\s*\\?\}')
_STARTS = ('"word"', "pause:")
_IPA = re.compile("[\u0250-\u02ffæðŋβθχ]")
_FORM = 'A pronunciation has the form {"word": "Nguyen", "pronounce": "win"}; correct it.'


class DeepgramControls(ControlReader):
    BEGINNINGS = ("\\", "{")

    def __init__(self, values: Values | None = None, is_http: bool = False) -> None:
        """is_http: the text may have pauses, as the vendor has it, and IPA."""
        super().__init__(values)
        self._is_http = is_http
        self._pauses_left = MAX_PAUSES if is_http else 0
        self._lexicon = str((values or {}).get("lexicon", ""))
        self._ipa: dict[str, str] = {}  # of words of the text so far
        self.pronunciations = 0

    def lexicon(self) -> Values:
        """That of the values, with the IPA of the text. Raises ``InvalidInputError`` for a wrong one."""
        ipa = written_lexicon({word: {"alphabet": "ipa", "ph": written} for word, written in self._ipa.items()})
        return {"lexicon": joined_lexicon(ipa, self._lexicon)} if self._ipa else {}

    def _is_open(self, held: str) -> bool:
        inner = held.removeprefix("\\")
        if len(held) >= MAX_CONTROL_CHARS or inner[:1] not in ("", "{") or "}" in inner:
            return False
        body = inner[1:].lstrip()
        return any(body.startswith(start) or start.startswith(body) for start in _STARTS)

    def _meaning(self, held: str) -> str | None:
        found = _CONTROL.fullmatch(held)
        if found is None:
            return None
        if found["pause_ms"] is not None:
            self._pauses_left -= 1
            if self._pauses_left < 0 or (pause_ms := int(found["pause_ms"])) not in PAUSES_MS:
                raise InvalidInputError(
                    f"A text may have up to {MAX_PAUSES} pauses of 500 to 3000 ms, over HTTP alone; leave the others out."
                )
            self._add(Break(pause_ms))
            return ""
        if (pronunciation := _pronunciation_in(found["fields"])) is None:
            return None
        self.pronunciations += 1
        word, said = pronunciation
        return self._with_ipa(word, said) if _IPA.search(said) else said

    def _with_ipa(self, word: str, written: str) -> str:
        if not self._is_http:
            raise InvalidInputError(
                f"IPA in a text is read over HTTP alone; respell {word[:40]!r} in plain letters or in the address's lexicon."
            )
        if self._ipa.setdefault(word, written) != written:
            raise InvalidInputError(f"The text has {word[:40]!r} in IPA twice, and not the same; respell one in plain letters.")
        return word


def _pronunciation_in(fields: str) -> tuple[str, str] | None:
    """A word and how it is said. None: it is text that looks like one. Raises ``InvalidInputError`` for a wrong one."""
    try:
        values = json.loads("{" + fields + "}")
    except ValueError:
        values = {}
    if values.keys() != {"word", "pronounce"}:
        return None
    word, said = values["word"], values["pronounce"]
    if not isinstance(word, str) or not isinstance(said, str) or not is_speakable(said):
        raise InvalidInputError(_FORM)
    return word, said
