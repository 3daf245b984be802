"""How an expression becomes words: readers of known written forms, the library for the rest, and a check of what the library says. Pure.

A language has one table of readers (``english_readers``, ``chinese_readers``). The expression is searched from its beginning: the first
match is read by its reader, of several at the same place the first of the table. What lies between matches goes to the library. Its
reading is taken only if nothing in it was left over (a digit, a mark between two words, a lost word); else the part is spelled out:
its numbers and letters one after another, its marks by name. That is clumsy and never wrong.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Read = Callable[[re.Match[str], str], str | None]  # a match and the kind of what stands before the expression; None: not this form
_MARKS_OF_WORDS = " \t\n.,;:!?\"'()[]{}*"  # punctuation that is written as it is, and not spoken
_POWER = re.compile("(?<=[A-Za-z0-9])(?![²³](?![⁰¹²³⁴-⁹]))[⁺⁻]?[⁰¹²³⁴-⁹]+")  # ² and ³ are read by themselves
_TO_PLAIN = str.maketrans(
    {**dict.fromkeys("–—‒‑‐−－", "-"), **dict.fromkeys("～〜∼", "~"), "’": "'", "‘": "'", "￥": "¥", "⁄": "/", "∶": ":"}
)


@dataclass(frozen=True)
class Reader:
    pattern: re.Pattern[str]
    read: Read


@dataclass(frozen=True)
class ReadingRules:
    """Of one language. marks: their names. number: digits with an optional fraction as words. gap: between words."""

    readers: tuple[Reader, ...]
    marks: Mapping[str, str]
    number: Callable[[str], str]
    gap: str
    left_over: re.Pattern[str]  # what no reading has
    changed_words: frozenset[str]  # written words that the library replaces, lower-case


def prepared(expression: str) -> str:
    """Typographic dashes, quotes and blanks as plain ones, compatibility forms of digits and signs folded."""
    folded = ""
    powers = _POWER.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}", " ".join(expression.split()))
    for character in powers:
        if character in "²³":
            folded += character
        elif character.isnumeric() and not character.isdecimal() and not _is_ideograph(character):
            plain = unicodedata.normalize("NFKC", character)
            folded += f" {plain}" if folded[-1:].isdigit() else plain
        elif character.isdecimal():
            folded += str(unicodedata.decimal(character))
        elif "\u3300" <= character <= "\u33ff":  # ㎡
            folded += unicodedata.normalize("NFKC", character)
        elif "\uff01" <= character <= "\uff5e" and character not in "，；：！？":
            folded += unicodedata.normalize("NFKC", character)
        else:
            folded += character
    return folded.translate(_TO_PLAIN)


def read_expression(expression: str, rules: ReadingRules, context: str, library: Callable[[str], str]) -> str:
    """context: the kind of what stands before it, one that the readers know, or empty."""
    text = prepared(expression)
    spoken, at = "", 0
    while at < len(text):
        found = _first(text, at, rules.readers, context)
        start, end, words = found or (len(text), len(text), "")
        if start > at:
            spoken = _joined(spoken, _read_rest(text[at:start], rules, library), rules.gap)
        spoken = _joined(spoken, words, rules.gap)
        at = end
    return spoken


def _first(text: str, at: int, readers: Iterable[Reader], context: str) -> tuple[int, int, str] | None:
    """Start, end and words of the first form."""
    best: tuple[int, int, str] | None = None
    for reader in readers:
        for match in reader.pattern.finditer(text, at):
            if best is not None and match.start() >= best[0]:
                break
            words = reader.read(match, context)
            if words is not None and match.end() > match.start():
                best = (match.start(), match.end(), words)
                break
    return best


def _read_rest(part: str, rules: ReadingRules, library: Callable[[str], str]) -> str:
    core = part.strip()
    if all(character in _MARKS_OF_WORDS for character in core):
        return part
    spoken = library(core)
    if not is_clean(core, spoken, rules):
        spoken = spelled_out(core, rules)
    start = part.index(core)
    return part[:start] + spoken + part[start + len(core) :]


def is_clean(written: str, spoken: str, rules: ReadingRules) -> bool:
    """Whether a reading has no leftovers of the written form, and all of its words."""
    if not any(character.isdigit() or character not in _MARKS_OF_WORDS for character in written if not character.isalpha()):
        return bool(spoken)  # abbreviations
    kept = spoken.lower()
    words = (word.lower() for word in re.findall("[A-Za-z]{3,}", written))
    if any(unicodedata.category(character).startswith("S") for character in spoken):
        return False
    return bool(spoken) and rules.left_over.search(spoken) is None and all(word in kept or word in rules.changed_words for word in words)


def spelled_out(text: str, rules: ReadingRules) -> str:
    """Numbers and words one after another, marks by name."""
    spoken = ""
    for token in re.findall(r"\d+\.\d+(?![\d.])|\d+|[^\W\d_]+|\s+|.", text):
        if token[0].isdigit():
            spoken = _joined(spoken, rules.number(token), rules.gap)
        elif token in rules.marks:
            spoken = _joined(spoken, rules.marks[token], rules.gap)
        else:
            spoken = _joined(spoken, token, rules.gap)
    return spoken.strip()


def spelled_marks(text: str, rules: ReadingRules, address_digits: Callable[[str], str]) -> str:
    """As ``spelled_out``, with the marks that punctuation is elsewhere: addresses, paths, names of files."""
    names = {
        **rules.marks,
        ".": "dot",
        ":": "colon",
        "-": "dash",
        "?": "question mark",
        "~": "tilde",
        "\\": "backslash",
        ",": "comma",
        ";": "semicolon",
    }
    words = (
        names.get(token) or (address_digits(token) if token.isdigit() else letters(token)) for token in re.findall(r"\d+|[A-Za-z]+|.", text)
    )
    return " ".join(words)


_SHORT_FORMS = frozenset("ai api edu html io ip uk us id url ui".split())


def letters(word: str) -> str:
    """Letters that no reader makes a word of are written in capitals, which are spoken one by one."""
    is_short_form = word.lower() in _SHORT_FORMS or (1 < len(word) < 6 and not set(word.lower()) & set("aeiouyäöüé"))
    return word.upper() if word.isascii() and word.islower() and is_short_form else word


def _joined(before: str, after: str, gap: str) -> str:
    """With a gap between two words that would else become one."""
    is_glued = before[-1:].isalnum() and after[:1].isalnum() and (gap or (before[-1].isascii() and after[0].isascii()))
    return f"{before}{gap or ' '}{after}" if is_glued else before + after


def _is_ideograph(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff"
