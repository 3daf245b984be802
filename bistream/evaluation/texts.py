"""Errors of a transcript against its text: one normal form, the readings of its numbers, and errors in units.

A unit is a word or, of Chinese and Japanese, a character: texts that mix both scripts have both. Digits and
number words sound alike, so a text and its transcript are compared in all their readings, and the best pair counts.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import product

from bistream.text.front_end import contains_chinese
from bistream.text.normalization import is_installed, load_read_out, normalize_text

_DIGITS = {
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "zh": tuple("零一二三四五六七八九"),
}
_DOT_OF_LETTERS = re.compile(r"(?<=\b[a-z])\.(?=[a-z]\b)")  # p.m.
_UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def units_of(text: str) -> list[str]:
    """Lower case, each digit as a word, apostrophes and the dots between single letters dropped, no other sign."""
    digits = _DIGITS["zh" if contains_chinese(text) else "en"]
    plain = unicodedata.normalize("NFKC", text.lower())
    spelled = re.sub(r"[0-9]", lambda match: f" {digits[int(match[0])]} ", re.sub(r"['\u2019]", "", _DOT_OF_LETTERS.sub("", plain)))
    return _UNIT.findall(spelled)


def readings_of(text: str) -> list[list[str]]:
    """The units of a text: with its digits one by one, and with its numbers, dates and amounts read out where the package is installed."""
    found = [units_of(text)]
    if is_installed():
        read = units_of(normalize_text(text, "auto", load_read_out()))
        found += [read] if read not in found else []
    return found


@dataclass(frozen=True)
class Comparison:
    """units: of the text. errors: at most ``units``: a runaway of the judge counts as a sentence not understood. missing_end: units at the
    end of the text for which nothing was heard."""

    units: int
    errors: int
    missing_end: int


def compare(wanted: str, heard: str) -> Comparison:
    """Of the readings with the fewest errors; the units are those of the text as it is read out, whatever was heard."""
    readings = readings_of(wanted)
    found = [compare_units(one, other) for one, other in product(readings, readings_of(heard))]
    best, units = min(found, key=lambda each: each.errors), len(readings[-1])
    return Comparison(units, min(best.errors, units), min(best.missing_end, units))


def compare_units(wanted: list[str], heard: list[str]) -> Comparison:
    """By Levenshtein distance."""
    row = list(range(len(heard) + 1))
    distances = [row[-1]]  # of the first units of the text, to all that was heard
    for number, unit in enumerate(wanted, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (unit != other))
        distances.append(row[-1])
    total, missing = distances[-1], 0
    while missing < len(wanted) and distances[len(wanted) - missing - 1] == total - missing - 1:
        missing += 1
    return Comparison(len(wanted), min(total, len(wanted)), missing)
