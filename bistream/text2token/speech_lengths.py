"""How long text tokens are spoken, by the characters that they cover: an estimate, and a bound that no speech exceeds. Pure.

A token alone says little: it covers four English letters, one Chinese character, or a third of one that the vocabulary lacks. So every
character counts once, by its kind, with the units of 40 ms, CosyVoice's speech tokens, that it takes at an ordinary pace:

    letter          2   0.08 s: with blanks (0) and pauses English reads 15 characters a second
    letter of Indic, Thai, Georgian; full-width form   3
    kana            4   7 a second, with pauses
    mark, symbol    5   a pause or a short word
    Hangul          5
    ideograph       6   Mandarin reads 4 to 5 a second
    emoji           8   several words, where it is read at all
    digit          10   a word
    special token  10   a breath, a laugh; 3 for one that stands for a phone

``most`` allows five times that and two seconds: letters that are spelled one by one take 0.4 s each, a symbol may be read as several
words, and no instruction makes speech five times as slow. It bites where tokens are smaller than characters; elsewhere upstream's 20
speech tokens for each text token (``BlockLayout``) are less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from bistream.families.family import BlockLayout

MOST_OVER_ORDINARY = 5
UNITS_PER_SECOND = 25  # of the table
PAUSES_S = 2  # of a whole text, beside what its characters take
SPECIAL, PHONE = 10, 3
_LETTER, _MARK, _DIGIT, _BLANK = 2, 5, 10, 0


class SpeechLengths:
    """bytes_of: the UTF-8 of a text token, which may begin or end inside a character; empty for a special token. phones: special tokens
    that stand for speech, as letters do."""

    def __init__(self, bytes_of: Callable[[int], bytes], phones: Set[int] = frozenset(), tokens_per_second: int = UNITS_PER_SECOND) -> None:
        self._tokens_per_second = tokens_per_second
        self._bytes_of = bytes_of
        self._phones = phones

    def ordinary(self, ids: Sequence[int]) -> int:
        """Speech tokens at an ordinary pace."""
        return sum(map(self._of_token, ids)) * self._tokens_per_second // UNITS_PER_SECOND

    def most(self, num_text: int, ordinary: int, blocks: BlockLayout) -> int:
        """Speech tokens of ``num_text`` text tokens that take ``ordinary`` ones at an ordinary pace, at the most."""
        most = max(MOST_OVER_ORDINARY * ordinary + PAUSES_S * self._tokens_per_second, blocks.min_speech_per_text * num_text)
        return min(blocks.max_speech_per_text * num_text, most)

    def _of_token(self, token_id: int) -> int:
        piece = self._bytes_of(token_id)
        if not piece:
            return PHONE if token_id in self._phones else SPECIAL
        return sum(_OF_BYTE[byte] for byte in piece)


def _of_first_byte(byte: int) -> int:
    """By the byte with which a character begins; its other bytes count nothing."""
    if byte < 0x80:
        character = chr(byte)
        if character.isalpha() or character == "'":
            return _LETTER
        return _DIGIT if character.isdigit() else _BLANK if byte <= 0x20 else _MARK
    bounds = ((0xC2, 0), (0xC3, _MARK), (0xE0, _LETTER), (0xE2, 3), (0xE3, _MARK), (0xE4, 4), (0xEA, 6), (0xEE, 5), (0xF0, 3), (0x100, 8))
    return next(value for bound, value in bounds if byte < bound)


_OF_BYTE = tuple(map(_of_first_byte, range(256)))
