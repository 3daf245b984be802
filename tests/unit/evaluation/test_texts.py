"""Units, readings and errors of what was heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.evaluation.texts import compare, compare_units, readings_of, units_of

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6)


@given(WORDS, WORDS)
def test_errors_are_a_distance_of_at_most_all_words(wanted: list[str], heard: list[str]) -> None:
    found = compare_units(wanted, heard)
    assert (found.errors == 0) == (wanted == heard or not wanted)
    assert min(len(wanted), abs(len(wanted) - len(heard))) <= found.errors <= len(wanted) == found.units
    assert compare_units(wanted, []).errors == len(wanted)


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=8), st.integers(0, 8))
def test_a_text_that_is_not_spoken_to_its_end(numbers: list[int], spoken: int) -> None:
    wanted = [str(number) for number in numbers]
    found = compare_units(wanted, wanted[:spoken])
    assert found.missing_end == found.errors == max(0, len(wanted) - spoken)
    assert compare_units([*wanted, "the", "end"], [*wanted[:-1], "the", "end"]).missing_end == 0


@given(st.text(alphabet="ab '-.,!?", max_size=30), st.sampled_from(["", " ", "...", "!"]))
def test_case_signs_and_blanks_cannot_be_heard(text: str, sign: str) -> None:
    assert units_of(f" {text.upper()} {sign}") == units_of(text)


@pytest.mark.parametrize(
    "wanted,heard",
    [
        ("It's twenty-five dollars.", "its $25"),
        ("The code is 4 0 7.", "the code is four oh seven".replace("oh", "zero")),
        ("Meet me at 3:45 pm.", "Meet me at three forty-five p.m."),
        ("In 1998 we moved.", "in nineteen ninety eight we moved"),
        ("会议在下午三点半开始。", "会议在下午3点半开始"),
        ("一共是25元。", "一共是二十五元"),
        ("Call 555 0134.", "call five five five zero one three four"),
    ],
)
def test_numbers_are_equal_however_they_are_written(wanted: str, heard: str) -> None:
    assert compare(wanted, heard).errors == 0, (readings_of(wanted), readings_of(heard))


def test_characters_of_chinese_and_words_of_english_are_units() -> None:
    assert units_of("我用 Python 写代码。") == ["我", "用", "python", "写", "代", "码"]
    found = compare("我用 Python 写代码。", "我用拍森写代码")
    assert (found.units, found.errors) == (6, 2)
    assert compare("", "").units == 0
