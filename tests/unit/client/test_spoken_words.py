"""Words and times while a text grows: nothing is said to be spoken too early, and nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bistream.client.spoken_words import SpokenWord, SpokenWords

TEXTS = st.text(st.sampled_from("ab cd, .你好，。\n1"), max_size=60)


@given(TEXTS, st.data())
def test_words_are_the_text_in_order_of_time(text: str, data: st.DataObject) -> None:
    words, found, received, position, clock_s = SpokenWords(), list[SpokenWord](), 0, 0, 0.0
    for _ in range(data.draw(st.integers(0, 6))):
        received = data.draw(st.integers(received, len(text)))
        position = data.draw(st.integers(position, received))
        begin_s = clock_s + data.draw(st.floats(0, 2))
        clock_s = begin_s + data.draw(st.floats(0.04, 2))
        new = words.push(text[:received], position, begin_s, clock_s)
        assert len("".join(word.text for word in (*found, *new))) <= position
        assert all(word.end_s <= clock_s for word in new)
        found += new
    found += words.finish(text)
    assert "".join(word.text for word in found) == text.rstrip()
    times = [time for word in found for time in (word.begin_s, word.end_s)]
    assert times == sorted(times)


def test_a_word_that_may_go_on_is_held_back() -> None:
    words = SpokenWords()
    assert words.push("Hello wor", 9, 0.0, 0.9) == [SpokenWord("Hello", 0.0, 0.5)]
    assert words.push("Hello world", 9, 0.9, 1.0) == []
    assert [word.text for word in words.finish("Hello world")] == [" world"]
