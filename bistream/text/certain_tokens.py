"""The tokens of an unfinished piece of text that no continuation can change. Pure; used by ``tokenizer`` and ``text_in``.

Byte-level BPE merges the pair of lowest rank first, so a place that no merge crosses separates the text: what stands before it
is encoded as if it stood alone. Let ``p`` be the known part of a piece, and ``T`` any continuation of it. In ``encode(T)`` either
a token ends where ``p`` ends, or one token, an entry of the vocabulary, starts at some place ``s`` in ``p``, begins with
``p[s:]`` and goes on beyond ``p``. In both cases the tokens before that place are those of ``encode(p[:s])``. The entries of the
vocabulary leave few places ``s``, and what ``encode(p[:s])`` has in common at all of them is certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from os.path import commonprefix

Encoded = tuple[int, int]  # id of a token, and the number of byte symbols that it covers


class Vocabulary:
    """Entries that encoding can produce, as byte symbols, ordered so that those with a common beginning are neighbours."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = sorted(set(entries))
        self._longest = max(map(len, self._entries), default=0)

    def open_places(self, known: str) -> list[int]:
        """Ascending: where in ``known`` a token may start that goes on beyond its end; and the end itself."""
        first = max(0, len(known) - self._longest + 1)
        return [*(place for place in range(first, len(known)) if self._is_extended(known[place:])), len(known)]

    def _is_extended(self, beginning: str) -> bool:
        index = bisect_right(self._entries, beginning)
        return index < len(self._entries) and self._entries[index].startswith(beginning)


def certain_tokens(vocabulary: Vocabulary, encode: Callable[[str], list[Encoded]], known: str) -> list[Encoded]:
    """The first tokens of ``known`` that every text that begins with ``known`` has."""
    certain: list[Encoded] | None = None
    for place in vocabulary.open_places(known):
        if certain == [] or place == 0:
            return []
        tokens = encode(known[:place])
        certain = tokens if certain is None else list(commonprefix([certain, tokens]))
    return certain or []
