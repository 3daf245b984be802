"""Upstream's text preparation in its offline path, before tokenization: text in, sentences out.

Used by the offline inference scripts; streamed text bypasses it, as upstream. Pure Python. Rules and numbers are
upstream's (cosyvoice/utils/frontend_utils.py, cosyvoice/cli/frontend.py, without its optional text normalisers). Where
upstream raises, these functions do not: empty text gives no sentences, a blank at either end is dropped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

MAX_SENTENCE_LENGTH = 80  # sentences are not joined beyond this length, unless the first part is at most ``MIN_SENTENCE_LENGTH``
MIN_SENTENCE_LENGTH = 60
MERGE_LENGTH = 20  # a last piece shorter than this is joined to the one before
_TERMINATORS = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_COMMAS = "，,"
_CLOSING_QUOTES = '"”'
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ["", *"thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion".split()]


def contains_chinese(text: str) -> bool:
    """Whether a character of the block CJK Unified Ideographs occurs."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def replace_corner_mark(text: str) -> str:
    """Spell the superscripts for square and cube."""
    return text.replace("²", "平方").replace("³", "立方")


def remove_bracket(text: str) -> str:
    """Drop full-width brackets and backticks; a Chinese dash becomes a blank."""
    return re.sub("[（）【】`]", "", text).replace("——", " ")


def replace_blank(text: str) -> str:
    """Keep a blank only between two non-blank ASCII characters: between English words, not between Chinese ones."""

    def is_ascii_word(index: int) -> bool:
        return 0 <= index < len(text) and text[index].isascii() and text[index] != " "

    return "".join(
        character for index, character in enumerate(text) if character != " " or (is_ascii_word(index - 1) and is_ascii_word(index + 1))
    )


def is_only_punctuation(text: str) -> bool:
    """Whether the text consists of punctuation and symbols only (blanks are neither)."""
    return all(unicodedata.category(character)[0] in "PS" for character in text)


def number_to_words(digits: str) -> str:
    """English words of a decimal number, as ``inflect`` writes them: ``1234`` is "one thousand, two hundred and thirty-four".

    Leading zeros are ignored. Numbers above 999 decillion are read digit by digit.
    """
    digits = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0")
    if not digits:
        return _UNITS[0]
    if len(digits) > 3 * len(_SCALES):
        return " ".join(_UNITS[int(digit)] for digit in digits)
    words = ""
    for scale in reversed(range(len(_SCALES))):
        group = int(digits) // 1000**scale % 1000
        if group == 0:
            continue
        if words:
            words += " and " if scale == 0 and group < 100 else ", "
        words += f"{_below_thousand(group)} {_SCALES[scale]}".rstrip()
    return words


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if hundreds:
        tail = f" and {_below_thousand(rest)}" if rest else ""
        return f"{_UNITS[hundreds]} hundred{tail}"
    if number < 20:
        return _UNITS[number]
    tens, unit = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_UNITS[unit]}" if unit else "")


def spell_out_number(text: str) -> str:
    """Replace every run of decimal digits by English words."""
    return re.sub(r"\d+", lambda match: number_to_words(match[0]), text)


def split_paragraph(
    text: str,
    count_tokens: Callable[[str], int],
    language: str = "zh",
    max_length: int = MAX_SENTENCE_LENGTH,
    min_length: int = MIN_SENTENCE_LENGTH,
    merge_length: int = MERGE_LENGTH,
    comma_split: bool = False,
) -> list[str]:
    """Sentences, joined into pieces of useful length. A missing final terminator is added.

    language: "zh" measures length in characters, "en" in tokens (``count_tokens``). A piece is complete when it is longer than
    ``min_length`` and the next sentence would make it longer than ``max_length``.
    """
    if not text:
        return []
    terminators = _TERMINATORS[language] + (_COMMAS if comma_split else "")
    if text[-1] not in terminators:
        text += "。" if language == "zh" else "."
    length = len if language == "zh" else count_tokens
    pieces: list[str] = []
    current = ""
    for sentence in _sentences(text, terminators):
        if length(current + sentence) > max_length and length(current) > min_length:
            pieces.append(current)
            current = ""
        current += sentence
    if current and pieces and length(current) < merge_length:
        pieces[-1] += current
    elif current:
        pieces.append(current)
    return pieces


def _sentences(text: str, terminators: str) -> list[str]:
    """Cut after every terminator (and a closing quote after it). Of several terminators in a row the first is kept."""
    sentences: list[str] = []
    start = 0
    for index, character in enumerate(text):
        if character not in terminators:
            continue
        if index > start:
            sentences.append(text[start : index + 1])
        start = index + 1
        if sentences and text[start : start + 1] and text[start] in _CLOSING_QUOTES:
            sentences[-1] += text[start]
            start += 1
    return sentences


def spoken_text(text: str, as_written: frozenset[str] = frozenset()) -> str:
    """A whole text as it is tokenized, in one piece. Text with a special token (``<|...|>``) is left unchanged.

    as_written: tokens that stay as they are, such as ``[AA1]``, whose digit upstream spells out.
    """
    if "<|" in text and "|>" in text:
        return text
    text = text.strip()
    if not contains_chinese(text):
        return between_tokens(text, as_written, spell_out_number)
    text = replace_corner_mark(replace_blank(text.replace("\n", "")))
    text = remove_bracket(text.replace(".", "。").replace(" - ", "，"))
    return re.sub("[，,、]+$", "。", text)


def prepare_text(text: str, count_tokens: Callable[[str], int], as_written: frozenset[str] = frozenset()) -> list[str]:
    """A whole text as the pieces that are spoken one after another, each generated separately.

    Text with a special token (``<|...|>``) is one piece, however long; pieces of punctuation alone are dropped. as_written: as in
    ``spoken_text``.
    """
    spoken = spoken_text(text, as_written)
    if "<|" in text and "|>" in text:
        return [spoken]
    pieces = split_paragraph(spoken, count_tokens, "zh" if contains_chinese(spoken) else "en")
    return [piece for piece in pieces if not is_only_punctuation(piece)]


def between_tokens(text: str, tokens: frozenset[str], change: Callable[[str], str]) -> str:
    """``change`` of each part of the text between ``tokens``, which stay as they are."""
    if not tokens:
        return change(text)
    parts = re.split(f"({'|'.join(map(re.escape, sorted(tokens, key=len, reverse=True)))})", text)
    return "".join(part if part in tokens else change(part) for part in parts if part)
