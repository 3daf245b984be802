"""Which texts are said to take long: all that are read out as words, and none that is a few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.text.effort import LONG_BYTES, takes_long
from bistream.text.normalization import TextNormalizer


@given(st.text(alphabet="abc ,.!?'\u4f60\u597d", max_size=80))
def test_words_do_not(text: str) -> None:
    assert not takes_long(text.encode())


@pytest.mark.parametrize("text", ["$5", "3 km", "50%", "at 10:30", "a@b.c", "1,234.5", "\u20ac9", "\uff15"])
def test_what_is_read_out_does(text: str) -> None:
    assert takes_long(text.encode()) and takes_long(text.encode(), "zh") and not takes_long(text.encode(), "off")


def test_a_long_text_does() -> None:
    assert takes_long(b"x" * (LONG_BYTES + 1)) and not takes_long(b"x" * LONG_BYTES)


@given(st.text(alphabet="ab 059$%.,:/@#&+-\u20ac\u4f60", max_size=30))
def test_no_expression_is_missed(text: str) -> None:
    """What the normaliser would have read out of a text that is said to be quick holds no digit."""
    spans: list[str] = []

    def read_out(expression: str, language: str, kind: str) -> str:
        spans.append(expression)
        return expression

    normalizer = TextNormalizer("auto", "en", read_out, lambda character, count: None)
    for character in text:
        normalizer.feed(character, 1)
    normalizer.finish(is_end=True)
    if not takes_long(text.encode()):
        assert not any(any(letter.isdigit() for letter in span) for span in spans)
