"""Cuts of a text change nothing; special tokens are found wherever they are cut, and too many in a row are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.text.speakable import MAX_SPECIAL_RUN, SpeakableBytes, SpeakableText
from bistream.text.special_tokens import SPECIAL_TOKENS, SpecialTokenFinder
from tests.unit.cuts import pieces_of

WORDS = ["a", "word", "7", "\u4f60", "\u0645", "\u00bd"]
NOTHING = ["", " ", "\n", ".", "?!", "\u3002", "\U0001f600", "<", "[", "|>", "_"]
PARTS = st.lists(st.sampled_from([*WORDS, *NOTHING, *SPECIAL_TOKENS]), max_size=12)
CUTS = st.lists(st.integers(0, 80), max_size=6)


def read(pieces: list[str]) -> SpeakableText:
    speakable = SpeakableText()
    for index, piece in enumerate(pieces, 1):
        speakable.push(piece, index == len(pieces))
    return speakable


@given(PARTS, CUTS)
def test_it_is_words_that_can_be_spoken(parts: list[str], cuts: list[int]) -> None:
    """Parts are separated, so that two of them never make a token."""
    speakable = SpeakableText()
    pieces = pieces_of(" ".join(parts), cuts)
    found = any([speakable.push(piece, index == len(pieces)) for index, piece in enumerate(pieces, 1)])
    assert found == any(part in WORDS for part in parts)


@pytest.mark.parametrize("token", ["[laughter]", "<strong>"])  # the others: below
@pytest.mark.parametrize("between", ["", " ", ", ", "\n"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_special_tokens_in_a_row_are_bounded(token: str, between: str, size: int) -> None:
    text = (token + between) * MAX_SPECIAL_RUN
    read([text[begin : begin + size] for begin in range(0, len(text), size)])
    with pytest.raises(InvalidInputError, match="special tokens"):
        read([(text + token)[begin : begin + size] for begin in range(0, len(text + token), size)])


@given(st.lists(st.sampled_from(SPECIAL_TOKENS), min_size=MAX_SPECIAL_RUN + 1, max_size=60), CUTS)
def test_mixed_ones_count_together(tokens: list[str], cuts: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="send words between"):
        read(pieces_of("".join(tokens), cuts))


def test_words_between_begin_a_new_row() -> None:
    read([("[laughter]" * MAX_SPECIAL_RUN + "ha ") * 20])


def test_a_copy_is_independent() -> None:
    speakable = SpeakableText()
    speakable.push("[laugh", final=False)
    copy = speakable.copy()
    assert copy.push("ter] so", final=True)
    assert not speakable.push("ter]", final=True)


def test_the_work_is_linear_in_the_number_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand pieces of one character: no piece is read together with more than a possible token before it."""
    seen: list[int] = []
    find = SpecialTokenFinder.find

    def count(self: SpecialTokenFinder, text: str, final: bool) -> tuple[int, str | None]:
        seen.append(len(text))
        return find(self, text, final)

    monkeypatch.setattr(SpecialTokenFinder, "find", count)
    read(list("[breath]<strong>ab " * 600))
    assert max(seen) <= max(map(len, SPECIAL_TOKENS))


@given(PARTS, CUTS)
def test_cuts_change_nothing_even_inside_characters(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    speakable, pieces = SpeakableBytes(), pieces_of(text.encode(), cuts)
    found = [speakable.push(piece, index == len(pieces)) for index, piece in enumerate(pieces, 1)]
    assert any(found) == SpeakableText().push(text, final=True)


def test_a_piece_that_is_refused_changes_nothing() -> None:
    speakable, half = SpeakableBytes(), "\u4f60".encode()
    assert not speakable.push(half[:2], False)
    with pytest.raises(InvalidInputError):
        speakable.push(half[2:] + (MAX_SPECIAL_RUN + 1) * SPECIAL_TOKENS[0].encode(), False)
    assert speakable.push(half[2:], True), "the character goes on where it was cut"
