"""Words and times while a text grows: nothing is said to be spoken too early, and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.spoken_words import WORD, SpokenWord, SpokenWords

WRITTEN = [*"ab cd, .你好，。\n1", "<s>", "</s>", '<break time="1.5s"/>']
TEXTS = st.lists(st.sampled_from(WRITTEN), max_size=60).map("".join)
TAGS = re.compile("<[^>]*>")
PATTERNS = st.sampled_from([None, WORD])


def made(pattern: re.Pattern[str] | None, begin_s: float = 0.0) -> SpokenWords:
    return SpokenWords(begin_s) if pattern is None else SpokenWords(begin_s, pattern)


@given(TEXTS, PATTERNS, st.data())
def test_words_are_the_text_in_order_of_time(text: str, pattern: re.Pattern[str] | None, data: st.DataObject) -> None:
    begin_s = clock_s = data.draw(st.floats(0, 2))
    words, found, position = made(pattern, begin_s), list[SpokenWord](), 0
    for _ in range(data.draw(st.integers(0, 6))):
        words.text = text[: data.draw(st.integers(len(words.text), len(text)))]
        position = data.draw(st.integers(position, len(words.text)))
        pause_s, duration_s = data.draw(st.floats(0, 2)), data.draw(st.floats(0.04, 2))
        new = words.push(position, duration_s, clock_s + pause_s if pause_s else None)
        clock_s += pause_s + duration_s
        assert all(word.end <= position and begin_s <= word.begin_s and word.end_s <= clock_s + 1e-9 for word in new)
        found += new
    words.text = text
    found += words.finish()
    joined = "".join(word.text for word in found)
    spoken = TAGS.sub("", text)
    assert joined == ("".join(spoken.split()) if pattern is WORD else spoken.rstrip())
    assert all(text[word.begin : word.end] == word.text.lstrip() for word in found)
    times = [time for word in found for time in (word.begin_s, word.end_s)]
    assert times == sorted(times)


def test_a_word_that_may_go_on_is_held_back() -> None:
    words = SpokenWords()
    words.text = "Hello wor"
    assert words.push(9, 0.9) == [SpokenWord("Hello", 0, 5, 0.0, 0.5)]
    words.text = "Hello world"
    assert words.push(9, 0.1) == []
    assert [word.text for word in words.finish()] == [" world"]


def test_a_word_ends_with_its_last_letter() -> None:
    """The marks behind it are a pause; a mark that stands alone takes its time."""
    words = SpokenWords(pattern=WORD)
    words.text = "Yes, 'no'. - ab"
    found = [*words.push(15, 1.5), *words.finish()]
    assert [(word.text, round(word.begin_s, 6), round(word.end_s, 6)) for word in found] == [
        ("Yes,", 0.0, 0.3), ("'no'.", 0.5, 0.8), ("-", 1.1, 1.2), ("ab", 1.3, 1.5)
    ]  # fmt: skip


def test_where_the_voice_stands_still_a_word_ends_before_and_the_next_begins_after() -> None:
    words = SpokenWords()
    words.text = "a b 你好"
    found = [word for position in (1, 1, 2, 6) for word in words.push(position, 0.1)] + words.finish()
    assert [(word.text, round(word.begin_s, 6), round(word.end_s, 6)) for word in found] == [
        ("a", 0.0, 0.1), (" b", 0.3, 0.325), (" 你", 0.35, 0.375), ("好", 0.375, 0.4)
    ]  # fmt: skip


def test_tags_are_no_words_though_positions_count_them() -> None:
    words = SpokenWords(pattern=WORD)
    words.text = '<speak>Yes <break time="1s"/>no'
    found = words.push(10, 0.4)
    words.text += " <sub"
    words.text += ' alias="n">N</sub></speak>'
    found += [*words.push(29, 1.0), *words.push(31, 0.6), *words.finish()]
    assert [word.text for word in found] == ["Yes", "no", "N"]
    assert [(word.begin, round(word.begin_s, 6), round(word.end_s, 6)) for word in found[:2]] == [(7, 0.28, 0.4), (29, 1.4, 2.0)]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("When p <s then we speak on. And on.", "When p <s then we speak on. And on."),
        ('One <sub alias="x > y">two</sub> three', "One two three"),
        ("1 <p and 'so' on", "1 <p and 'so' on"),
    ],
)
def test_what_only_begins_like_a_tag_is_text_once_all_of_it_is_there(text: str, spoken: str) -> None:
    words = SpokenWords(pattern=WORD)
    found = []
    for character in text:
        words.text += character
        found += words.push(len(words.text), 0.1)
    assert [word.text for word in (*found, *words.finish())] == spoken.split()


def test_a_cut_and_a_settled_text_end_a_word() -> None:
    words = SpokenWords(pattern=WORD)
    words.text = "ab"
    words.cut()
    assert [word.text for word in words.push(2, 0.2)] == ["ab"]
    words.text += "cd"
    assert words.push(4, 0.2) == []
    assert [word.text for word in words.settle()] == ["cd"]
    words.text += "ef"
    assert [word.text for word in words.finish()] == ["ef"]
