"""The held-out sets A to E, and what of the training text would meet them.

A: 100 sentences on which checkpoints are chosen. B: 100 others, which are reported. C: 20 rows of digits. D: 50 rows of 8 random words,
half of which training never sees. E: 10 paragraphs. The everyday sentences and paragraphs were written for this project; the rows
are drawn here with a fixed seed.

Example, after a change of the sets:  python -m training.heldout --words /usr/share/dict/scowl/english-words.35
"""

from __future__ import annotations

import argparse
import random
from functools import cache
from pathlib import Path

from training.normalise import text_hash, words_of

FOLDER = Path(__file__).parent / "sets"
NAMES = ("a", "b", "c", "d", "e")
HASH_FILE = FOLDER / "hashes.txt"
REMOVED_WORDS_FILE = FOLDER / "removed_words.txt"
DIGITS_PER_ROW = 6
WORDS_PER_ROW = 8
WORD_ROWS = 50
_SEEDS = {"a": 11, "b": 12, "c": 13, "d": 14}


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
    return text_hash(text) in hashes() or not removed_words().isdisjoint(words_of(text))


def digit_rows(count: int, seed: int) -> list[str]:
    """Rows such as "4 0 7 1 9 2": each digit is one text token and one word."""
    draw = random.Random(seed)
    return [" ".join(str(draw.randrange(10)) for _ in range(DIGITS_PER_ROW)) + "." for _ in range(count)]


def word_rows(words: list[str], seed: int) -> tuple[list[str], list[str]]:
    """Rows of random words, and every second of these words: those to remove from training."""
    chosen = random.Random(seed).sample(words, WORD_ROWS * WORDS_PER_ROW)
    rows = [" ".join(chosen[start : start + WORDS_PER_ROW]).capitalize() + "." for start in range(0, len(chosen), WORDS_PER_ROW)]
    return rows, sorted(chosen[::2])


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_sets(words: list[str]) -> None:
    """Rows of A to D, the removed words and the hashes. words: all that set D may draw."""
    for name in ("a", "b"):
        kept = [line for line in sentences(name) if not line[0].isdigit()]
        _write_lines(FOLDER / f"{name}.txt", kept + digit_rows(10, _SEEDS[name]))
    _write_lines(FOLDER / "c.txt", digit_rows(20, _SEEDS["c"]))
    rows, removed = word_rows(words, _SEEDS["d"])
    _write_lines(FOLDER / "d.txt", rows)
    _write_lines(REMOVED_WORDS_FILE, removed)
    sentences.cache_clear()
    _write_lines(HASH_FILE, sorted(text_hash(line) for name in NAMES for line in sentences(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=Path, required=True, help="word list from which set D is drawn, one a line")
    arguments = parser.parse_args()
    in_other_sets = {word for name in ("a", "b", "e") for line in sentences(name) for word in words_of(line)}
    lines = arguments.words.read_text(encoding="latin-1").splitlines()
    words = [word for word in lines if word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 10]
    blocked = (FOLDER / "blocked_words.txt").read_text(encoding="utf-8").split()
    write_sets(sorted(set(words) - in_other_sets - set(blocked)))


if __name__ == "__main__":
    main()
