"""CosyVoice3's tokenizer: its added special tokens and their ids, and texts with them, whole and in pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.phoneme_tokens import ARPABET_TOKENS, PINYIN_TOKENS
from bistream.text.text_in import TextIn
from bistream.text.tokenizer import TextTokenizer
from tests.parity import golden
from tests.unit.text.pieces import tokens_of

GOLDEN: dict[str, Any] = golden.COSYVOICE3_SET.read_json("tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """From files as those of ``CosyVoice-BlankEN``."""
    directory: Path = tmp_path_factory.mktemp("model")
    (directory / "cosyvoice3.yaml").touch()
    qwen = directory / COSYVOICE3.text_directory
    qwen.mkdir()
    (qwen / "vocab.json").write_text(json.dumps(GOLDEN["vocab"]), encoding="utf-8")
    (qwen / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in GOLDEN["merges"]), encoding="utf-8")
    (qwen / "tokenizer_config.json").write_text(json.dumps(GOLDEN["tokenizer_config"]), encoding="utf-8")
    return TextTokenizer.from_model_dir(directory)


def test_the_added_tokens_and_their_ids(tokenizer: TextTokenizer) -> None:
    added = COSYVOICE3.added_tokens
    assert list(added) == GOLDEN["added_special_tokens"]
    assert [tokenizer.special_tokens[token] for token in added] == list(range(GOLDEN["first_added_id"], tokenizer.size))
    assert GOLDEN["released_first_added_id"] + len(added) == GOLDEN["released_size"]
    assert (len(ARPABET_TOKENS), len(PINYIN_TOKENS)) == (84, 176)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['text'][:20]!a}")
def test_ids_of_a_text(tokenizer: TextTokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode(case["text"]) == case["expected"]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['text'][:20]!a}")
def test_ids_of_a_text_in_pieces(tokenizer: TextTokenizer, case: dict[str, Any], size: int) -> None:
    text_in, content = TextIn(tokenizer), case["text"].encode()
    tokens = [token for at in range(0, len(content), size) for token in tokens_of(text_in, content[at : at + size])]
    assert [token.id for token in (*tokens, *tokens_of(text_in, b"", is_end=True))] == case["expected"]
