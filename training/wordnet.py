"""Example sentences from the glosses of WordNet (Debian package ``wordnet-base``, Princeton's permissive licence)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FILES = ("data.adj", "data.adv", "data.noun", "data.verb")
_QUOTE = re.compile(r'"([^"]+)"')
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ',;:.?!-]{13,138}[A-Za-z.?!]")
_FEWEST_WORDS = 4
_AS_IS = 5  # one example in so many keeps its lower case and has no final stop


def quotes(folder: Path) -> Iterator[str]:
    """Every quoted example, in the order of the files; lines that begin with two blanks are the licence."""
    for name in _FILES:
        for line in (folder / name).read_text(encoding="latin-1").splitlines():
            if not line.startswith("  ") and "|" in line:
                yield from (quote.strip() for quote in _QUOTE.findall(line.split("|", 1)[1]))


def sentences(folder: Path, blocked: frozenset[str]) -> list[str]:
    """Different usable examples as sentences: 15 to 140 characters, four words or more, no blocked word, no digit."""
    found: dict[str, None] = {}
    for quote in quotes(folder):
        words = set(re.findall(r"[a-z']+", quote.lower()))
        if _ALLOWED.fullmatch(quote) and len(quote.split()) >= _FEWEST_WORDS and blocked.isdisjoint(words):
            found[quote] = None
    return [quote if index % _AS_IS == 0 else _finished(quote) for index, quote in enumerate(found)]


def _finished(quote: str) -> str:
    first = quote[0].upper() + quote[1:]
    return first if first[-1] in ".?!" else f"{first}."
