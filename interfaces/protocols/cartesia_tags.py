"""Cartesia's tags in a transcript: ``break``, ``speed`` and ``spell``; ``volume`` and ``emotion`` have no effect. Pure."""

from __future__ import annotations

import re

from bistream.contract.checks import check_speed
from bistream.errors import InvalidInputError
from bistream.text.markup import spelled
from interfaces.core.text import SpeedChange
from interfaces.core.values import Values
from interfaces.protocols.text_controls import BreakTags

_RATIO = re.compile(r"""\sratio\s*=\s*["']?(\d+(?:\.\d*)?|\.\d+)["']?\s*""")


class CartesiaTags(BreakTags):
    NAMES = ("break", "speed", "spell", "volume", "emotion")

    def __init__(self, values: Values | None = None) -> None:
        super().__init__(values)
        self._is_spelled = False

    def _take(self, name: str, attributes: str, is_end: bool) -> None:
        super()._take(name, attributes, is_end)
        if name == "spell":
            self._is_spelled = not is_end
        elif name == "speed" and not is_end:
            self._add(SpeedChange(_ratio_in(attributes)))

    def _say(self, character: str, count: int) -> None:
        super()._say(spelled(character) if self._is_spelled and character else character, count)


def _ratio_in(attributes: str) -> float:
    found = _RATIO.fullmatch(attributes)
    if found is None:
        raise InvalidInputError('A speed tag has a ratio, such as <speed ratio="1.2"/>; correct it.')
    check_speed(ratio := float(found[1]))
    return ratio
