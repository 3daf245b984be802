"""Pieces of text joined: what the cuts must not change, and what they may."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interfaces.core.text import PieceJoiner

LATIN = st.text(alphabet="abz .,!?'-éß한국", max_size=40)


def joined(pieces: list[str]) -> str:
    joiner = PieceJoiner()
    return "".join([joiner.push(piece) for piece in pieces]) + joiner.finish()


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[left:right] for left, right in zip(bounds, bounds[1:], strict=False)]


@given(LATIN, st.lists(st.integers(0, 100), max_size=6))
def test_text_without_cjk_arrives_as_it_was_sent(text: str, places: list[int]) -> None:
    assert joined(cut(text, places)) == text


@given(st.text(alphabet="你好，。 ab", max_size=20), st.lists(st.integers(0, 100), max_size=6))
def test_only_blanks_are_dropped_and_only_between_cjk_characters(text: str, places: list[int]) -> None:
    made = joined(cut(text, places))
    assert made.replace(" ", "") == text.replace(" ", "")
    assert joined([text]) == text


@given(st.lists(st.text(alphabet="你， ab\ud83d\ude00", max_size=6), max_size=8))
def test_heard_grows_with_what_is_spoken_and_ends_with_all_of_it(pieces: list[str]) -> None:
    joiner = PieceJoiner()
    given_out = sum(len(joiner.push(piece)) for piece in pieces) + len(joiner.finish())
    heard = [joiner.heard(spoken) for spoken in range(given_out + 1)]
    assert heard == sorted(heard)
    assert heard[-1] == joiner.received == sum(map(len, pieces))
    assert all(spoken <= characters <= joiner.received for spoken, characters in enumerate(heard[:-1]) if joiner.received >= given_out)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["你好， ", "今天天气不错。 "], "你好，今天天气不错。 "),  # a word tokenizer's blank after each word
        (["你好", " ", "今天"], "你好今天"),
        (["你好", " 今天"], "你好今天"),
        (["你好 今天"], "你好 今天"),  # inside a piece it is the author's
        (["你好 ", "GPT"], "你好 GPT"),
        (["GPT ", "你好"], "GPT 你好"),
        (["他说“好” ", "然后"], "他说“好”然后"),
        (["said “yes” ", "“no”"], "said “yes” “no”"),
        (["你好  ", "今天"], "你好  今天"),  # two are no tokenizer's
        (["안녕 ", "하세요"], "안녕 하세요"),
        (["Hello ", "world, "], "Hello world, "),
    ],
)
def test_blanks_at_cuts(pieces: list[str], text: str) -> None:
    assert joined(pieces) == text


def test_halves_of_a_character_are_joined_and_lone_ones_replaced() -> None:
    halves = [json.loads(r'"a\ud83d"'), json.loads(r'"\ude00b"')]
    assert joined(halves) == "a😀b"
    assert joined([json.loads(r'"a\ude00b\ud83d"')]) == "a\ufffdb\ufffd"
