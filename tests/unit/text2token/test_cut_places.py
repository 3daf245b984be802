"""Where a text may be cut: after sentences, clauses and words, and never inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.cut_places import CutPlaces, Place, place_between

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab .,!?\"'\n。，今天7"), max_size=60)


def places(pieces: list[bytes]) -> list[Place]:
    cuts = CutPlaces(lambda index: pieces[index])
    return list(map(cuts.before, range(len(pieces))))


def by_characters(text: str) -> list[Place]:
    return places([character.encode() for character in text])


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("He left. She stayed.", ["He left."]),
        ('"No!" she said. "Why?" I asked.', ['"No!"', " she said.", ' "Why?"']),
        ("It is 3.14 and not 2.0.1, see example.com today.", []),
        ("Mr. Smith and Dr. J. K. Brown, e.g. in the U.S. army.", []),
        ("1. Wash it. 12. Dry it. In 1999. Then more.", ["1. Wash it.", " 12. Dry it.", " In 1999."]),
        ("Really?! Yes... no.", ["Really?!", " Yes..."]),
        ("(One.) Two.", ["(One.)"]),
        ("Title\n\nText", ["Title\n\n"]),
        ("今天好。明天呢？！“好。”他说", ["今天好。", "明天呢？！", "“好。”"]),
    ],
)
def test_sentences_end(text: str, ends: list[str]) -> None:
    found, begin = [], 0
    for index, place in enumerate(by_characters(text)):
        if place is Place.SENTENCE:
            found.append(text[begin:index])
            begin = index
    assert found == ends


def test_clauses_and_words() -> None:
    assert place_between("first,", " ") is place_between("first —", " ") is place_between("先，", "后") is Place.CLAUSE
    assert place_between("1", ",") is place_between("1,", "0") is Place.INSIDE_WORD
    assert place_between("first", " ") is place_between("今", "天") is place_between("Mr.", " ") is Place.WORD
    assert place_between("fir", "st") is place_between("", "a") is place_between("a", "") is Place.INSIDE_WORD


@given(text=TEXTS, cuts=st.lists(st.integers(0, 240), max_size=12))
def test_tokens_may_begin_inside_characters_and_be_cut_there_never(text: str, cuts: list[int]) -> None:
    data = text.encode()
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    starts = {len(text[:index].encode()): place for index, place in enumerate(by_characters(text))}
    for begin, piece, place in zip(bounds, pieces, places(pieces), strict=False):
        if begin not in starts:
            assert place is Place.INSIDE_CHARACTER
        elif piece.decode(errors="ignore"):
            assert place is starts[begin]
        else:
            assert Place.INSIDE_WORD <= place <= Place.SENTENCE


def test_what_is_quoted_may_be_followed_by_who_said_it() -> None:
    assert place_between('"Why?"', " he") is Place.CLAUSE
    assert place_between('"Why?"', " He") is place_between('"Why?"', " ") is place_between("why?", " he") is Place.SENTENCE


def test_a_special_token_is_no_character() -> None:
    assert places([b"Hi.", b"", b" Then"]) == [Place.INSIDE_WORD, Place.INSIDE_WORD, Place.SENTENCE]
