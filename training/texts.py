"""The training text: WordNet's examples and definitions, sentences of our grammar, rows of random words. Deterministic; needs no network.

WordNet's glosses are those of the Debian package ``wordnet-base``, under Princeton's permissive licence.

Called by ``make.py --stage prepare``, which downloads the packages. Held-out sentences and the removed words of set D never pass.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bistream.evaluation.texts import units_of
from training.grammar import Grammar
from training.heldout import FOLDER, meets, removed_words

WORD_LISTS = tuple(f"{variety}-words.{level}" for level in (10, 20, 35) for variety in ("english", "american"))
ROW_WORDS = 7
_FILES = ("data.adj", "data.adv", "data.noun", "data.verb")
_QUOTE = re.compile(r'"([^"]+)"')
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ',;:.?!-]{13,138}[A-Za-z.?!]")
_FEWEST_WORDS = 4
_AS_IS = 5  # one example in so many keeps its lower case and has no final stop
KINDS = ("wordnet", "definitions", "grammar", "words")


@dataclass(frozen=True)
class TextPlan:
    """How much of each kind. least_seen: every listed word occurs at least so often; 0 makes no rows."""

    wordnet: int = 40_000
    definitions: int = 45_000
    grammar: int = 14_000
    least_seen: int = 6
    seed: int = 1


def blocked_words() -> frozenset[str]:
    return frozenset((FOLDER / "blocked_words.txt").read_text(encoding="utf-8").split())


def read_words(folder: Path) -> list[str]:
    """The words of scowl's lists up to level 35: ASCII letters alone, in lower case, 2 or more."""
    found: set[str] = set()
    for name in WORD_LISTS:
        found.update((folder / name).read_text(encoding="latin-1").split())
    return sorted(word for word in found if word.isascii() and word.isalpha() and word.islower() and len(word) > 1)


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


def as_sentences(texts: Iterable[str], blocked: frozenset[str]) -> list[str]:
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


def rows_of_rare_words(words: list[str], texts: list[str], least_seen: int, seed: int) -> list[str]:
    """Rows of random words, until each of ``words`` occurs ``least_seen`` times in all texts."""
    counts = Counter(word for text in texts for word in units_of(text))
    missing = [word for word in words for _ in range(max(0, least_seen - counts[word]))]
    random.Random(seed).shuffle(missing)
    rows = [missing[start : start + ROW_WORDS] for start in range(0, len(missing), ROW_WORDS)]
    return [" ".join(row).capitalize() + "." for row in rows]


def make_texts(wordnet_folder: Path, words_folder: Path, plan: TextPlan) -> list[tuple[str, str]]:
    """(kind, text) in random order."""
    blocked = blocked_words()
    listed = read_words(words_folder)
    examples = _some(as_sentences(quotes(wordnet_folder), blocked), plan.wordnet, plan.seed)
    meanings = _some(as_sentences(definitions(wordnet_folder, frozenset(listed)), blocked), plan.definitions, plan.seed)
    grammar, spoken = Grammar(plan.seed), dict[str, None]()
    while len(spoken) < plan.grammar:
        if not meets(text := grammar.sentence()):
            spoken[text] = None
    words = [word for word in listed if word not in blocked and word not in removed_words()]
    rows = rows_of_rare_words(words, [*examples, *meanings, *spoken], plan.least_seen, plan.seed)
    rows = [row for row in rows if not meets(row)]
    texts = [(kind, text) for kind, group in zip(KINDS, (examples, meanings, spoken, rows), strict=True) for text in group]
    random.Random(plan.seed + 1).shuffle(texts)
    return texts


def _some(texts: list[str], count: int, seed: int) -> list[str]:
    """At most ``count`` of them, none of which is held out."""
    chosen = [text for text in texts if not meets(text)]
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def write_texts(texts: list[tuple[str, str]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in texts)


def read_texts(path: Path) -> list[tuple[str, str]]:
    """(kind, text) in the file's order, which numbers the sentences."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [(kind, text) for kind, text in map(json.loads, file)]
