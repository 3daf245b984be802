"""Whether it takes long to make ids of a text. Pure, and imports no library."""

from __future__ import annotations

import re

LONG_BYTES = 256  # plain text takes about 7 us for each
# What expressions begin with that are read out as words: one takes milliseconds (docs/log/text.md, numbers as words).
_EXPRESSION = re.compile(rb"[0-9$%#@&+=/]|\xc2[\xa3\xa5\xb0\xb1]|\xe2\x82\xac|\xef\xbc[\x90-\x99]")


def reads_numbers(normalization: str) -> bool:
    """Whether a ``text_normalization`` has numbers read out."""
    return not normalization.startswith(("raw", "off"))


def takes_long(text: bytes, normalization: str = "auto") -> bool:
    """So that no other session should wait for it. normalization: of the session, where it is known."""
    return len(text) > LONG_BYTES or (reads_numbers(normalization) and _EXPRESSION.search(text) is not None)
