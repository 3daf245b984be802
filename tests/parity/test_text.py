"""The text helpers against the reference's results, and their results where the reference raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text import front_end as text_front_end
from bistream.text.front_end import is_only_punctuation, number_to_words, prepare_text, replace_blank, spell_out_number, split_paragraph
from tests.parity import golden

CASES: list[dict[str, Any]] = golden.read_json("text.json")
CASES3: list[dict[str, Any]] = golden.COSYVOICE3_SET.read_json("text.json")["cases"]
TOKENIZERS: dict[str, Callable[[str], int]] = {"whitespace words": lambda text: len(text.split())}


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['fn']}-{case['text'][:20]!a}")
def test_cases_of_the_reference(case: dict[str, Any]) -> None:
    if case["fn"] == "split_paragraph":
        result: Any = split_paragraph(
            case["text"],
            TOKENIZERS[case["tokenizer"]],
            case["lang"],
            max_length=case["token_max_n"],
            min_length=case["token_min_n"],
            merge_length=case["merge_len"],
            comma_split=case["comma_split"],
        )
    else:
        result = getattr(text_front_end, case["fn"])(case["text"])
    assert result == case["expected"]


@pytest.mark.parametrize("case", CASES3, ids=lambda case: f"{'split' if case['split'] else 'whole'}-{case['text'][:20]!a}")
def test_texts_with_instructions_and_pronunciation_tokens(case: dict[str, Any]) -> None:
    """``text_normalize`` of the reference's CosyVoice3: whole, or split. An empty text has no pieces here."""
    assert case["fn"] == "text_normalize"
    if not case["split"]:
        assert text_front_end.spoken_text(case["text"]) == case["expected"]
    else:
        assert prepare_text(case["text"], TOKENIZERS[case["tokenizer"]]) == [piece for piece in case["expected"] if piece]


def test_digits_of_pronunciation_tokens_stay_as_written() -> None:
    """The reference makes ``[AHzero]`` of ``[AH0]``, which is no token any more."""
    text = "say [T][AH0][M][EY1][T][OW2] in room 12"
    assert prepare_text(text, count_words, COSYVOICE3.spoken_tokens) == ["say [T][AH0][M][EY1][T][OW2] in room twelve."]
    assert prepare_text(text, count_words) == ["say [T][AHzero][M][EYone][T][OWtwo] in room twelve."]


@pytest.mark.parametrize(
    ("digits", "words"),
    [  # as inflect 7.3.1 writes them
        ("0", "zero"),
        ("00", "zero"),
        ("007", "seven"),
        ("11", "eleven"),
        ("20", "twenty"),
        ("21", "twenty-one"),
        ("100", "one hundred"),
        ("101", "one hundred and one"),
        ("999", "nine hundred and ninety-nine"),
        ("1000", "one thousand"),
        ("1001", "one thousand and one"),
        ("1010", "one thousand and ten"),
        ("1100", "one thousand, one hundred"),
        ("1234", "one thousand, two hundred and thirty-four"),
        ("12345", "twelve thousand, three hundred and forty-five"),
        ("100001", "one hundred thousand and one"),
        ("123456", "one hundred and twenty-three thousand, four hundred and fifty-six"),
        ("1000001", "one million and one"),
        ("1001000", "one million, one thousand"),
        ("1000000001000", "one trillion, one thousand"),
        ("1" + "0" * 33, "one decillion"),
        ("\u0663", "three"),
    ],
)
def test_numbers_are_spelled_as_inflect_does(digits: str, words: str) -> None:
    assert number_to_words(digits) == words


def test_numbers_beyond_all_names_are_read_digit_by_digit() -> None:
    assert number_to_words("12" * 19) == " ".join(["one two"] * 19)


def test_superscripts_are_not_numbers() -> None:
    assert spell_out_number("5 m\u00b2") == "five m\u00b2"


def test_blanks_at_the_ends_are_dropped() -> None:
    """The reference raises IndexError for a blank at the end, and compares one at the start with the last character."""
    assert replace_blank(" a b ") == "a b"


def test_empty_text_has_no_sentences() -> None:
    """The reference raises IndexError."""
    assert split_paragraph("", count_words) == []
    assert prepare_text("  ", count_words) == []
    assert split_paragraph('."', count_words, "en") == ['".']
    assert is_only_punctuation("")


def test_preparing_a_chinese_text() -> None:
    text = "\u4f60 \u597d\uff08\u4e16\u754c\uff095m\u00b2 ok go\n\u518d\u89c1\uff0c"
    assert prepare_text(text, count_words) == ["\u4f60\u597d\u4e16\u754c5m\u5e73\u65b9ok go\u518d\u89c1\u3002"]


def test_preparing_an_english_text() -> None:
    assert prepare_text("I have 3 cats. ...", count_words) == ["I have three cats. ."]
    assert prepare_text("...", count_words) == []
    assert prepare_text("say 3<|endofprompt|>", count_words) == ["say 3<|endofprompt|>"]
    long = ("word " * 70).strip() + ". " + ("more " * 30).strip() + ". end."
    assert [count_words(piece) for piece in prepare_text(long, count_words)] == [70, 31]
