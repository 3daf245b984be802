"""The special tokens of all families, and how they are found in a text that is still growing. Imports no tokenizer library."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bistream.families.registry import FAMILIES

_ALL = dict.fromkeys(token for family in FAMILIES for token in (*family.base_tokens, *family.added_tokens))
SPOKEN_TOKENS = frozenset[str]().union(*(family.spoken_tokens for family in FAMILIES))  # special tokens that stand for speech as letters do
SPECIAL_TOKENS = tuple(token for token in _ALL if token not in SPOKEN_TOKENS)  # one that a family lacks is never sent to it as text
END_OF_PROMPT = "<|endofprompt|>"  # ends an instruction
# Those in brackets stand for a sound; these only mark a place or change how the words between them are spoken.
MARKS = frozenset(token for token in SPECIAL_TOKENS if token.startswith("<")) | {"[accent]"}


class SpecialTokenFinder:
    """Matches tokens literally, anywhere in a text. Immutable."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = tuple(tokens)
        first_characters = sorted({token[0] for token in self._tokens})
        self._starts = re.compile(f"[{re.escape(''.join(first_characters))}]")

    def find(self, text: str, final: bool) -> tuple[int, str | None]:
        """Leftmost special token of a text that may continue (``final``: that is complete): (index, the token).

        If no token is certain, the token is None and the index is that of the first character that may begin one, or the
        length of the text. Of several tokens at the same index the longest wins.
        """
        for match in self._starts.finditer(text):
            index = match.start()
            if not final and any(len(token) > len(text) - index and token.startswith(text[index:]) for token in self._tokens):
                return index, None
            found = [token for token in self._tokens if text.startswith(token, index)]
            if found:
                return index, max(found, key=len)
        return len(text), None
