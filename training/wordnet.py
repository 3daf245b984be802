"""Example sentences and definitions, from the glosses of WordNet (Debian package ``wordnet-base``, Princeton's permissive licence)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_FILES = ("data.adj", "data.adv", "data.noun", "data.verb")
_QUOTE = re.compile(r'"([^"]+)"')
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ',;:.?!-]{13,138}[A-Za-z.?!]")
_FEWEST_WORDS = 4
_AS_IS = 5  # one example in so many keeps its lower case and has no final stop


def _glosses(folder: Path) -> Iterator[str]:
    """In the order of the files; lines that begin with two blanks are the licence."""
    for name in _FILES:
        for line in (folder / name).read_text(encoding="latin-1").splitlines():
            if not line.startswith("  ") and "|" in line:
                yield line.split("|", 1)[1]


def quotes(folder: Path) -> Iterator[str]:
    """Every quoted example."""
    for gloss in _glosses(folder):
        yield from (quote.strip() for quote in _QUOTE.findall(gloss))


def definitions(folder: Path, known: Collection[str]) -> Iterator[str]:
    """What stands before the examples, cut at semicolons, where it has no word that is not ``known``: no species, no places."""
    for gloss in _glosses(folder):
        for part in gloss.split('"', 1)[0].split(";"):
            if (words := _words(part)) and all(word in known for word in words):
                yield part.strip()


def sentences(texts: Iterable[str], blocked: frozenset[str]) -> list[str]:
    """Different usable texts as sentences: 15 to 140 characters, four words or more, no blocked word, no digit."""
    found: dict[str, None] = {}
    for text in texts:
        if _ALLOWED.fullmatch(text) and len(text.split()) >= _FEWEST_WORDS and blocked.isdisjoint(_words(text)):
            found[text] = None
    return [text if index % _AS_IS == 0 else _finished(text) for index, text in enumerate(found)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _finished(quote: str) -> str:
    first = quote[0].upper() + quote[1:]
    return first if first[-1] in ".?!" else f"{first}."
