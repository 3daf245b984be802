"""Where text that still grows is decided: characters, matches of the pre-tokenizer's pattern, tokens. Pure; used by ``text_in``."""

from __future__ import annotations

import unicodedata

from bistream.text.certain_tokens import Encoded

_IDEOGRAPHS = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\U00020000", "\U0002a6df"), ("\U0002a700", "\U0002ebe0"))


def whole_characters(text: str, encoded: list[Encoded], most_chars: int) -> list[Encoded]:
    """The first of the tokens of ``text``, up to the last one that ends with a character within ``most_chars``, or the first such one."""
    end_bytes = [0]
    for character in text:
        end_bytes.append(end_bytes[-1] + len(character.encode("utf-8")))
    kept = covered = 0
    for count, (_, num_bytes) in enumerate(encoded, start=1):
        covered += num_bytes
        if kept and covered > end_bytes[most_chars]:
            break
        if covered in end_bytes:
            kept = count
    return encoded[:kept]


def is_run_of_letters(match: str) -> bool:
    """Whether a match of the pattern that ends with the known text is a run of letters, and no further text makes it anything else.

    An apostrophe and letters may still become a contraction, which ends a match among letters.
    """
    return not match.startswith("'") and unicodedata.category(match[-1]).startswith("L")


def decided_pieces(window: str, pieces: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first pieces of a window that no further text can change.

    A match can change only if it reaches the end of the known text, or if it starts in the run of white space at that
    end, because the pattern looks ahead for a line end or for the last space before a word.
    """
    open_from = len(window.rstrip())
    decided = []
    start = 0
    for symbols, end in pieces:
        if end == len(window) or start >= open_from:
            break
        decided.append((symbols, end))
        start = end
    return decided


def is_complete(segment: str) -> bool:
    """Whether nothing that follows can change what ``segment`` is normalised to.

    True for a Chinese character alone, which no mark composes with: none of Unicode's decompositions begins with one, and no later
    version may add any (Unicode's normalization stability policy).
    """
    return len(segment) == 1 and any(first <= segment <= last for first, last in _IDEOGRAPHS)


def starts_segment(character: str) -> bool:
    """Whether ``character`` is an NFC boundary: the text before it and the text from it on normalise independently.

    True for a character that neither reorders nor composes with preceding text and is unchanged by NFC. Marks, the
    Hangul vowels and finals (the only letters that compose backwards), and code points unknown to this Python (the
    tokenizer's Unicode version may differ) count as no boundary: that delays text but never changes ids.
    """
    if character.isascii():
        return True
    if "\u1160" <= character <= "\u11ff" or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn"):
        return False
    return unicodedata.normalize("NFC", character) == character
