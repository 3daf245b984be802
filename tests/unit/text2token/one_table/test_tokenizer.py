"""What a user writes never becomes an id of an added token; a tokenizer of another model is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.one_table import RELEASED
from bistream.errors import CheckpointError
from bistream.families.bicodec_tokens import BiCodecTokens
from bistream.text.preparation import make_preparation
from bistream.text.text_in import TextIn
from bistream.text2token.one_table.tokenizer import PlainTextTokenizer, read_tokenizer
from scripts._tokenizer_files import make_vocabulary
from tests.unit.text.pieces import tokens_of

TOKENS = BiCodecTokens(512, 256, 512)
TOKENIZER = PlainTextTokenizer(*make_vocabulary(512), TOKENS)
HOSTILE = st.lists(st.one_of(st.sampled_from(RELEASED.names[::400]), st.sampled_from(TOKENS.names[::40]), st.text())).map("".join)


@given(HOSTILE)
def test_no_text_becomes_an_added_token(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert all(0 <= one < TOKENS.first for one in ids)
    assert TOKENIZER.decode(ids) == TOKENIZER.normalize(text)


@given(HOSTILE, st.data())
def test_nor_does_a_text_in_pieces(text: str, data: st.DataObject) -> None:
    whole = text.encode(errors="ignore")
    cut = data.draw(st.integers(0, len(whole)))
    for preparation in (None, make_preparation("off", "")):
        reader = TextIn(TOKENIZER, preparation)
        found = [*tokens_of(reader, whole[:cut]), *tokens_of(reader, whole[cut:]), *tokens_of(reader, b"", is_end=True)]
        assert all(0 <= one.id < TOKENS.first for one in found)


def test_every_token_is_of_text_and_has_its_bytes() -> None:
    text = "<|im_end|> and 可控。"
    assert b"".join(map(TOKENIZER.bytes_of, TOKENIZER.encode(text))) == text.encode()


def fewer(content: dict[str, Any]) -> None:
    del content["added_tokens"][-1]


def exchanged(content: dict[str, Any]) -> None:
    first, second = content["added_tokens"][-2:]
    first["content"], second["content"] = second["content"], first["content"]


def none(content: dict[str, Any]) -> None:
    content["added_tokens"] = content["added_tokens"][:22]


def shorter(content: dict[str, Any]) -> None:
    del content["model"]["vocab"]["!"]


def other_form(content: dict[str, Any]) -> None:
    del content["model"]["merges"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (fewer, "1,994 added tokens, and the model has 1,995: id 2506 is missing"),
        (exchanged, "not <|end_global_token|>"),
        (none, "22 added tokens, and the model has 1,995: id 534 is missing, not <|bicodec_global_0|>"),
        (shorter, "511 entries before its added tokens, not 512"),
        (other_form, "could not be interpreted"),
    ],
)
def test_another_tokenizer_is_refused(model_dir: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    content = json.loads((model_dir / "LLM/tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    (tmp_path / "LLM").mkdir()
    (tmp_path / "LLM/tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        read_tokenizer(tmp_path, "LLM", TOKENS)


def test_a_missing_or_broken_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"LLM/tokenizer\.json is missing"):
        read_tokenizer(tmp_path, "LLM", TOKENS)
    (tmp_path / "LLM").mkdir()
    (tmp_path / "LLM/tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"LLM/tokenizer\.json could not be interpreted"):
        read_tokenizer(tmp_path, "LLM", TOKENS)


def test_the_files_that_are_written_are_read(model_dir: Path) -> None:
    found = read_tokenizer(model_dir, "LLM", TOKENS)
    assert found.encode("The weather was clear 今天的天气很好") == TOKENIZER.encode("The weather was clear 今天的天气很好")
