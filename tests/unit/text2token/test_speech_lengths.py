"""How long text is spoken: an estimate by characters, and a bound that no real speech exceeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.speech_lengths import PHONE, SPECIAL, SpeechLengths
from tests.formats import BLOCKS, MAX_SPEECH_TOKENS_PER_TEXT_TOKEN, MIN_SPEECH_TOKENS_PER_TEXT_TOKEN, SPEECH_TOKENS_PER_SECOND


def ordinary_s(text: str) -> float:
    return SpeechLengths(lambda _: text.encode()).ordinary([0]) / SPEECH_TOKENS_PER_SECOND


def most_s(text: str) -> float:
    """Where every byte is a text token, as characters are that the vocabulary lacks."""
    data = text.encode()
    lengths = SpeechLengths(lambda index: data[index : index + 1])
    return lengths.most(len(data), lengths.ordinary(range(len(data))), BLOCKS) / SPEECH_TOKENS_PER_SECOND


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The garden behind our house is not large. In spring my mother plants beans and peas.", 4.5, 7.5),
        ("La biblioth\u00e8que \u00e9tait ferm\u00e9e, et nous sommes rentr\u00e9s \u00e0 pied.", 3.0, 6.0),
        ("\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u8d70\u8d70\u3002", 2.5, 5.0),
        ("\u304d\u3087\u3046\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002", 1.2, 3.0),
        ("4 0 7 1 9 2.", 2.0, 4.0),
    ],
)
def test_ordinary_speech_is_estimated(text: str, low: float, high: float) -> None:
    assert low <= ordinary_s(text) <= high


@pytest.mark.parametrize(
    ("text", "needs_s"),
    [
        ("www.example.com/a_b?c=d", 8.0),  # spelled letter by letter, every sign by its name
        ("me@example.org", 6.0),
        ("5%", 1.5),
        ("\u00bd \u33a2 \u20ac \u2122", 5.0),  # one half, square kilometres, euros, trade mark
        ("FBI", 2.0),
        ("1234567890", 8.0),
        ("\U0001f602", 2.0),  # face with tears of joy
        ("\u4e2d", 1.0),
        ("Ah", 1.5),
    ],
)
def test_the_bound_leaves_room_for_whatever_is_read_out(text: str, needs_s: float) -> None:
    data = text.encode()
    lengths = SpeechLengths(lambda index: data[index : index + 1])
    ordinary = lengths.ordinary(range(len(data)))
    upstream = MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(data)
    assert lengths.most(len(data), ordinary, BLOCKS) >= min(needs_s * SPEECH_TOKENS_PER_SECOND, upstream)


def test_letters_of_several_tokens_do_not_become_minutes() -> None:
    full_width = "".join(chr(0xFF21 + index % 26) for index in range(56))
    assert 20.0 <= most_s(full_width) <= 40.0  # 134 s by the number of tokens alone


def test_special_tokens_are_sounds_or_phones() -> None:
    lengths = SpeechLengths(lambda _: b"", phones={7})
    assert lengths.ordinary([7, 8]) == PHONE + SPECIAL


@given(text=st.text(min_size=1, max_size=80))
def test_a_bound_is_never_below_the_least_that_is_forced_and_never_above_upstreams(text: str) -> None:
    data = text.encode(errors="ignore")
    lengths = SpeechLengths(lambda index: data[index : index + 1])
    most = lengths.most(len(data), lengths.ordinary(range(len(data))), BLOCKS)
    assert MIN_SPEECH_TOKENS_PER_TEXT_TOKEN * len(data) <= most <= MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(data)
