"""The held-out sets A to E, and the check that no training text contains them.

A: 100 sentences on which checkpoints are chosen. B: 100 others, which are reported. C: 20 rows of digits. D: 50 rows of 8 random words,
half of which training never sees. E: 10 paragraphs. The everyday sentences and paragraphs were written for this project; the rows
are drawn here with a fixed seed.

Example, after a change of the sets:  python -m training.heldout --words /usr/share/dict/scowl/english-words.35
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from bistream.evaluation.texts import units_of

FOLDER = Path(__file__).parent / "sets"
NAMES = ("a", "b", "c", "d", "e")
HASH_FILE = FOLDER / "hashes.txt"
REMOVED_WORDS_FILE = FOLDER / "removed_words.txt"
_HASH_DIGITS = 16


def text_hash(text: str) -> str:
    """The first 64 bits of SHA-256 over the normal form, in hexadecimal."""
    return hashlib.sha256(" ".join(units_of(text)).encode()).hexdigest()[:_HASH_DIGITS]


@cache
def sentences(name: str) -> tuple[str, ...]:
    """The lines of a set; A and B end with ten rows of digits."""
    return tuple((FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())


@cache
def hashes() -> frozenset[str]:
    return frozenset(HASH_FILE.read_text(encoding="utf-8").split())


@cache
def removed_words() -> frozenset[str]:
    """Words of set D that training must not see."""
    return frozenset(REMOVED_WORDS_FILE.read_text(encoding="utf-8").split())


def meets(text: str) -> bool:
    """Whether a training text is one of the sets' sentences, or holds a word that is kept out."""
    return text_hash(text) in hashes() or not removed_words().isdisjoint(units_of(text))
