"""Cartesia's tags in a transcript: ``break``, ``speed`` and ``spell``; ``volume`` and ``emotion`` have no effect. Pure.

They are no XML: beside them, brackets and ampersands are text, and tags of other names are left to the servers.
"""

from __future__ import annotations

import re

from bistream.contract.checks import check_speed
from bistream.errors import InvalidInputError
from bistream.text.markup import MarkupReader, spelled
from bistream.text.tags import TAG, is_open_tag
from interfaces.core.text import Break, SpeedChange
from interfaces.core.values import Values
from interfaces.protocols.text_controls import ControlReader

_NAMES = ("break", "speed", "spell", "volume", "emotion")
_RATIO = re.compile(r"""\sratio\s*=\s*["']?(\d+(?:\.\d*)?|\.\d+)["']?\s*""")


class CartesiaTags(ControlReader):
    BEGINNINGS = ("<",)

    def __init__(self, values: Values | None = None) -> None:
        super().__init__(values)
        self._breaks = MarkupReader()
        self._is_spelled = False

    def _is_open(self, held: str) -> bool:
        return is_open_tag(held)

    def _meaning(self, held: str) -> str | None:
        tag = TAG.fullmatch(held)
        if tag is None or tag["name"] not in _NAMES:
            return None
        if tag["name"] == "spell":
            self._is_spelled = tag["end"] is None
        elif tag["name"] == "break" and tag["end"] is None:
            for one in self._breaks.push(f"<break{tag['attributes']}/>", is_end=False):
                self._add(Break(one.silence_ms or 0))
        elif tag["name"] == "speed" and tag["end"] is None:
            self._add(SpeedChange(_ratio_in(tag["attributes"])))
        return ""

    def _say(self, character: str, count: int) -> None:
        super()._say(spelled(character) if self._is_spelled and character else character, count)


def _ratio_in(attributes: str) -> float:
    found = _RATIO.fullmatch(attributes)
    if found is None:
        raise InvalidInputError('A speed tag has a ratio, such as <speed ratio="1.2"/>; correct it.')
    check_speed(ratio := float(found[1]))
    return ratio
