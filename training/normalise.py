"""One normal form of a text, for comparing texts: lower case, digits one by one, no punctuation. No dependencies.

``text_hash`` of it keeps the held-out sets out of the training text; the judges compare words in it.
"""

from __future__ import annotations

import hashlib
import re

DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_HASH_DIGITS = 16


def words_of(text: str) -> list[str]:
    """Lower case, each digit as a word, hyphens as blanks, apostrophes inside words dropped, no other sign."""
    spelled = re.sub(r"\d", lambda match: f" {DIGIT_WORDS[int(match[0])]} ", text.lower())
    letters = re.sub(r"[^a-z ]", " ", re.sub(r"['\u2019]", "", spelled))
    return letters.split()


def text_hash(text: str) -> str:
    """The first 64 bits of SHA-256 over the normal form, in hexadecimal."""
    return hashlib.sha256(" ".join(words_of(text)).encode()).hexdigest()[:_HASH_DIGITS]


def word_errors(wanted: list[str], heard: list[str]) -> int:
    """Levenshtein distance in words, at most ``len(wanted)``: a runaway of the judge counts as a sentence not understood."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(wanted, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return min(row[-1], len(wanted))
