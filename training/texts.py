"""The training text: WordNet's examples and definitions, sentences of our grammar, rows of random words. Deterministic; needs no network.

Called by ``make.py --stage prepare``, which downloads the packages. Held-out sentences and the removed words of set D never pass.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bistream.evaluation.texts import units_of
from training import wordnet
from training.grammar import Grammar
from training.heldout import FOLDER, meets, removed_words

WORD_LISTS = tuple(f"{variety}-words.{level}" for level in (10, 20, 35) for variety in ("english", "american"))
ROW_WORDS = 7
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
    examples = _some(wordnet.sentences(wordnet.quotes(wordnet_folder), blocked), plan.wordnet, plan.seed)
    definitions = _some(wordnet.sentences(wordnet.definitions(wordnet_folder, frozenset(listed)), blocked), plan.definitions, plan.seed)
    grammar, spoken = Grammar(plan.seed), dict[str, None]()
    while len(spoken) < plan.grammar:
        if not meets(text := grammar.sentence()):
            spoken[text] = None
    words = [word for word in listed if word not in blocked and word not in removed_words()]
    rows = rows_of_rare_words(words, [*examples, *definitions, *spoken], plan.least_seen, plan.seed)
    rows = [row for row in rows if not meets(row)]
    texts = [(kind, text) for kind, group in zip(KINDS, (examples, definitions, spoken, rows), strict=True) for text in group]
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
