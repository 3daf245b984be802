"""Helpers of the tests of text in pieces."""

from __future__ import annotations

from functools import lru_cache

from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer


@lru_cache(maxsize=256)
def byte_symbol(byte: int) -> str:
    """The symbol that stands for a byte: printable bytes for themselves, the others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def stream(tokenizer: TextTokenizer, data: bytes, cuts: list[int]) -> list[TextToken]:
    text_in = TextIn(tokenizer)
    tokens: list[TextToken] = []
    start = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        tokens += text_in.push(data[start:cut])
        start = cut
    return tokens + text_in.finish()
