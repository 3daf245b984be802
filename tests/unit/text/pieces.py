"""Helpers of the tests of text in pieces."""

from __future__ import annotations

from functools import lru_cache

from bistream.text.preparation import TextPreparation
from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from tests.unit.cuts import pieces_of


@lru_cache(maxsize=256)
def byte_symbol(byte: int) -> str:
    """The symbol that stands for a byte: printable bytes for themselves, the others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def tokens_of(text_in: TextIn, piece: bytes, is_end: bool = False) -> list[TextToken]:
    """Of plain text: what this piece decides."""
    return [one for one in text_in.read(piece, is_end) if isinstance(one, TextToken)]


def stream(tokenizer: TextTokenizer, data: bytes, cuts: list[int], preparation: TextPreparation | None = None) -> list[TextToken]:
    text_in = TextIn(tokenizer, preparation)
    return [token for piece in pieces_of(data, cuts) for token in tokens_of(text_in, piece)] + tokens_of(text_in, b"", is_end=True)
