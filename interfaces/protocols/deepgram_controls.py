r"""Deepgram's controls in a text: ``\{"word": "Nguyen", "pronounce": "win"\}`` and ``\{pause:500ms\}``, also without the backslashes. Pure.

The vendor's pronunciations are IPA, which no model here reads. A respelling in plain letters is spoken in place of the word.
"""

from __future__ import annotations

import json
import re

from bistream.contract.checks import is_speakable
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

    def __init__(self, values: Values | None = None, takes_pauses: bool = False) -> None:
        """takes_pauses: over HTTP, as the vendor has it."""
        super().__init__(values)
        self._pauses_left = MAX_PAUSES if takes_pauses else 0
        self.pronunciations = 0

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
        if (respelling := _respelling_in(found["fields"])) is not None:
            self.pronunciations += 1
        return respelling


def _respelling_in(fields: str) -> str | None:
    """None: it is text that looks like a pronunciation. Raises ``InvalidInputError`` for a wrong one."""
    try:
        values = json.loads("{" + fields + "}")
    except ValueError:
        values = {}
    if values.keys() != {"word", "pronounce"}:
        return None
    respelling = values["pronounce"]
    if not isinstance(values.get("word"), str) or not isinstance(respelling, str) or not is_speakable(respelling):
        raise InvalidInputError(_FORM)
    if _IPA.search(respelling):
        raise InvalidInputError(f"No model here reads IPA; respell {values['word'][:40]!r} in plain letters.")
    return respelling
