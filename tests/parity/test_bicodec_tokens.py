"""The table of ids against the reference's tokenizer, tiny and released."""

from __future__ import annotations

from typing import Any

import pytest

from bistream.checkpoints.one_table import RELEASED, OneTableConfig, one_table_config
from bistream.errors import CheckpointError
from bistream.families.bicodec_tokens import BiCodecTokens
from bistream.families.spark import SPARK
from tests.parity import golden_spark as golden


def sizes() -> OneTableConfig:
    return one_table_config(*contents(), SPARK)


def contents() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    files = golden.read_json("config.json")
    return files["LLM/config.json"], files["BiCodec/config.yaml"], files["config.yaml"]


def test_every_added_token_of_the_tokenizer_has_its_id() -> None:
    tokens = sizes().tokens
    added = {one["id"]: one["content"] for one in golden.read_json("tokenizer.json")["added_tokens"]}
    assert added == dict(enumerate(tokens.names, start=tokens.first))


def test_named_ids_of_the_tiny_tokenizer() -> None:
    tokens, told = sizes().tokens, golden.read_json("prompts.json")
    assert {name: tokens.first + tokens.names.index(name) for name in told["tiny"]} == told["tiny"]
    assert tokens.end == told["tiny_size"]


def test_ids_of_the_release() -> None:
    told = golden.read_json("prompts.json")["released"]
    for group, (first, count) in told["ranges_first_and_count"].items():
        assert RELEASED.ids(group) == range(first, first + count)
    assert {name: RELEASED.first + RELEASED.names.index(name) for name in told["named"]} == told["named"]
    assert (RELEASED.id("task_tts"), RELEASED.stop, RELEASED.end, len(RELEASED.names)) == (165_137, 151_645, 165_158, 13_515)


def test_sizes_of_the_model() -> None:
    qwen, codec, _ = contents()
    made = sizes()
    assert (made.table_size, made.hidden_size, made.num_hidden_layers) == (
        qwen["vocab_size"],
        qwen["hidden_size"],
        qwen["num_hidden_layers"],
    )
    assert (made.speech_token_size, made.tokens_per_second, made.top_k, made.top_p, made.temperature) == (
        codec["audio_tokenizer"]["quantizer"]["codebook_size"],
        50,
        50,
        0.95,
        0.8,
    )


@pytest.mark.parametrize(
    ("file", "key", "value", "sentence"),
    [
        (0, "vocab_size", 2000, "use files that belong together"),
        (2, "sample_rate", 24_000, "only 16000 can be served"),
        (2, "latent_hop_length", 160, "only 320 can be served"),
    ],
)
def test_files_that_do_not_fit(file: int, key: str, value: int, sentence: str) -> None:
    changed = [dict(one) for one in contents()]
    changed[file][key] = value
    with pytest.raises(CheckpointError, match=sentence):
        one_table_config(changed[0], changed[1], changed[2], SPARK)


def test_more_codes_move_what_follows() -> None:
    assert BiCodecTokens(10, 3, 4).id("pitch_value_0") - BiCodecTokens(10, 1, 1).id("pitch_value_0") == 5
