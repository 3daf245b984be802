"""Written forms as they are read out: alone, and inside a sentence of their language; and what holds for any numbers and marks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text.english_readers import RULES
from bistream.text.normalization import TextNormalizer, load_read_out, normalize_text
from bistream.text.number_words import chinese_cardinal, chinese_spelled, decade, number, ordinal, roman_value, spelled, year
from bistream.text.reading import is_clean, prepared, spelled_out
from bistream.text.reading_context import Language
from tests.unit.text.readings import READINGS

SENTENCES: dict[Language, str] = {"en": "Then {} came up.", "zh": "后来{}，好的。"}


def heard(text: str) -> str:
    """What of a text can be heard, in one form."""
    text = re.sub(r"[-,'’\"()（）。，]|(?<!\w)\.|\.(?!\w)", " ", text.lower().replace("'", ""))
    text = re.sub(r"(?<=hundred) and |(?<=thousand) and |(?<=million) and ", " ", text)
    text = re.sub(r"[二两](?=[百千万])", "二", text.replace("幺", "一"))
    text = re.sub(r"\s*([\u3400-\u9fff])\s*", r"\1", text)
    return " ".join(text.split())


def read_out(text: str, mode: str, language: Language) -> str:
    out: list[str] = []
    normalizer = TextNormalizer(mode, language, load_read_out(), lambda character, count: out.append(character))
    for character in text:
        normalizer.feed(character, 1)
    normalizer.finish(is_end=True)
    return "".join(out)


@pytest.mark.parametrize(("language", "form", "readings"), READINGS, ids=[f"{row[0]}-{row[1]}" for row in READINGS])
def test_a_written_form_is_read_rightly(language: Language, form: str, readings: list[str]) -> None:
    for sentence, mode in (("{}", language), (SENTENCES[language], "auto")):
        assert heard(read_out(sentence.format(form), mode, language)) in [heard(sentence.format(reading)) for reading in readings]


FORMS = st.sampled_from(READINGS).map(lambda row: row[1])
MARKS = list(".,:;!?/-+ ()%$€£¥~#=x°'^*<>±≤≥½²³–—&@_√①３")
UNITS = [
    "kg", "km/h", " mmHg", "am", " pm", "st", "v", "GB", "May ", "°C", "m²", "元", "个", "年", "月", "日", "点", "第",
    " million", "IV", "No. ", "p. ",
]  # fmt: skip
JUMBLES = st.lists(st.one_of(st.sampled_from("0123456789"), st.sampled_from(MARKS), st.sampled_from(UNITS), FORMS), max_size=10).map(
    "".join
)
LANGUAGES = st.sampled_from(("en", "zh"))


@settings(max_examples=80)
@given(text=JUMBLES, mode=LANGUAGES, place=st.integers(0, 200), other=st.integers(1, 9))
def test_no_digit_is_left_and_each_one_is_heard(text: str, mode: str, place: int, other: int) -> None:
    spoken = normalize_text(text, mode, load_read_out())
    assert not any(character.isdigit() for character in spoken)
    places = [index for index, character in enumerate(text) if character in "0123456789"]
    if places:
        at = places[place % len(places)]
        changed = f"{text[:at]}{(int(text[at]) + other) % 10}{text[at + 1 :]}"
        assert normalize_text(changed, mode, load_read_out()) != spoken


@settings(max_examples=40)
@given(
    groups=st.tuples(st.integers(201, 799), st.integers(0, 999), st.integers(0, 9999)),
    shape=st.sampled_from(("({}) {}-{}", "{}-{}-{}", "+1 {} {} {}", "{}.{}.{}")),
)
def test_telephones_are_read_digit_by_digit(groups: tuple[int, int, int], shape: str) -> None:
    written = [f"{groups[0]:03}", f"{groups[1]:03}", f"{groups[2]:04}"]
    words = [f"plus {spelled('1')}"] if shape[0] == "+" else []
    assert read_out(shape.format(*written), "en", "en") == ", ".join([*words, *map(spelled, written)])


@given(octets=st.lists(st.integers(0, 255), min_size=4, max_size=4), mode=LANGUAGES)
def test_network_addresses_are_read_digit_by_digit(octets: list[int], mode: str) -> None:
    dot, one_by_one = ("点", chinese_spelled) if mode == "zh" else (" dot ", spelled)
    assert read_out(".".join(map(str, octets)), mode, "en") == dot.join(one_by_one(str(octet)) for octet in octets)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Chapter IV begins. The IV drip stays, and so do XL and Mix.", "Chapter four begins. The IV drip stays, and so do XL and Mix."),
        (
            "(See room 402 (5 beds) or (212) 555-0187.)",
            "(See room four zero two (five beds) or two one two, five five five, zero one eight seven.)",
        ),
        ("a < b, <b>bold</b> and 5 > 3", "a < b, <b>bold</b> and five is greater than three"),
        ("It rose 5 - and fell.", "It rose five - and fell."),
        ("他用GPT-4写了3.5万字，花了$2.5/天。", "他用GPT四写了三点五万字，花了每天二点五美元。"),
        ("I said no. Then 5 came.", "I said no. Then five came."),
        ("他说5——不，2024——好。", "他说五——不，二零二四——好。"),
    ],
)
def test_only_numbers_are_read_out(text: str, spoken: str) -> None:
    assert read_out(text, "auto", "en") == spoken


@pytest.mark.parametrize(
    ("written", "spoken", "is_taken"),
    [
        ("2.0.1", "two.zero point one", False),
        ("5:x", "five:x", False),
        ("5 foot", "five", False),
        ("5 kg", "five kilograms", True),
        ("Dr.", "doctor", True),
        ("≠5", "≠five", False),
        ("5", "", False),
    ],
)
def test_a_reading_with_leftovers_is_not_taken(written: str, spoken: str, is_taken: bool) -> None:
    assert is_clean(written, spoken, RULES) is is_taken


def test_what_nobody_can_read_is_spelled_out() -> None:
    assert spelled_out("q/7:0x_12345", RULES) == "q slash seven colon zero x underscore one two three four five"


def test_compatibility_forms_are_folded() -> None:
    assert prepared("３½–５％") == "3 1/2-5%"
    assert prepared("①②") == "1 2"
    assert prepared("10⁻³ m² x¹⁰ 50㎡") == "10^-3 m² x^10 50m2"


def test_numbers_as_words() -> None:
    assert [number(text) for text in ("0", "1,234.50", ".5", "007", "1000000", "123456789")] == [
        "zero",
        "one thousand two hundred and thirty four point five zero",
        "point five",
        "zero zero seven",
        "one million",
        "one two three four five six seven eight nine",
    ]
    assert [year(digits) for digits in ("1066", "1800", "1905", "2000", "2005", "2024")] == [
        "ten sixty six",
        "eighteen hundred",
        "nineteen oh five",
        "two thousand",
        "two thousand and five",
        "twenty twenty four",
    ]
    assert [ordinal(digits) for digits in ("1", "12", "20", "33", "100")] == [
        "first",
        "twelfth",
        "twentieth",
        "thirty third",
        "one hundredth",
    ]
    assert [decade(digits) for digits in ("1990", "80", "1800")] == ["nineteen nineties", "eighties", "eighteen hundreds"]
    assert [roman_value(numeral) for numeral in ("IV", "XIX", "LVIII", "IIII", "VX", "")] == [4, 19, 58, None, None, None]


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        *[("0", "零"), ("10", "十"), ("12", "十二"), ("110", "一百一十"), ("1001", "一千零一")],
        *[("1010", "一千零一十"), ("2200", "两千两百")],
        *[("10000", "一万"), ("10012", "一万零一十二"), ("100010", "十万零一十"), ("120000", "十二万"), ("20002000", "两千万两千")],
        *[("100000000", "一亿"), ("1000000001", "十亿零一"), ("200000000000", "两千亿")],
    ],
)  # fmt: skip
def test_chinese_numbers(digits: str, words: str) -> None:
    assert chinese_cardinal(digits) == words
