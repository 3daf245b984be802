"""Marks in the text (``[laughter]``, ``<strong>``) survive text that arrives cut anywhere, also inside a mark or a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.families.cosyvoice2 import ADDED_TOKENS
from bistream.text.text_in import TextIn
from bistream.text.tokenizer import TextTokenizer
from scripts._tokenizer_files import write_tokenizer_files
from tests.unit.text.pieces import stream

WORDS = ("Hello", " there", "你好", "。", "[", "<", "</", " ", "[laugh", "strong>", "é", "now.")
PARTS = st.lists(st.one_of(st.sampled_from(ADDED_TOKENS), st.sampled_from(WORDS)), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer_files(directory, 500)
    return TextTokenizer.from_model_dir(directory)


def by_hand(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Marks are found from the left, each is one id, and the words between them are encoded by themselves."""
    ids: list[int] = []
    words = ""
    while text:
        mark = next((mark for mark in ADDED_TOKENS if text.startswith(mark)), None)
        if mark is None:
            words, text = words + text[0], text[1:]
            continue
        ids += [*tokenizer.encode(words), tokenizer.special_tokens[mark]]
        words, text = "", text[len(mark) :]
    return ids + tokenizer.encode(words)


@given(parts=PARTS, cuts=st.lists(st.integers(0, 200), max_size=20))
@settings(max_examples=80, deadline=None)
def test_marks_survive_any_cut(tokenizer: TextTokenizer, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert [token.id for token in stream(tokenizer, text.encode(), cuts)] == by_hand(tokenizer, text)


@pytest.mark.parametrize("mark", ADDED_TOKENS)
def test_a_mark_cut_at_every_byte(tokenizer: TextTokenizer, mark: str) -> None:
    data = f"He said {mark}so, 好{mark}{mark}".encode()
    wanted = by_hand(tokenizer, data.decode())
    assert wanted.count(tokenizer.special_tokens[mark]) == 3
    for cut in range(len(data) + 1):
        assert [token.id for token in stream(tokenizer, data, [cut])] == wanted
    assert [token.id for token in stream(tokenizer, data, list(range(len(data))))] == wanted


def test_a_mark_is_known_with_its_last_character(tokenizer: TextTokenizer) -> None:
    text_in = TextIn(tokenizer)
    before = text_in.push(b"Ha. [laughte")
    assert tokenizer.special_tokens["[laughter]"] not in [token.id for token in before]
    assert [token.id for token in text_in.push(b"r]")][-1] == tokenizer.special_tokens["[laughter]"]
