"""The ``LLM`` folder of a one-table model with random weights: every file of the released one, in its format and key names.

A ``OneTableConfig`` goes in, what writes each file comes out; ``checkpoints.one_table`` and ``text2token.one_table`` read the same back.
The tokenizer is a small one of our own with the model's added tokens, in their order. Called by ``make_checkpoint.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.qwen2 import qwen2_config
from bistream.text.tokenizer import make_pre_tokenizer
from bistream.text2token.one_table.weights import FILE_NAME, TABLE, expected_shapes
from scripts._random_weights import Drawer, Scale, Shape, common_scale, fan_in_scale
from scripts._tokenizer_files import FLAGS, make_vocabulary, qwen2_tokenizer_config

Writers = dict[str, Callable[[Path], object]]
NUM_SPECIAL = 14  # of Qwen2.5's added tokens, those that decoding leaves out
TABLE_GAIN = 2.0  # of the head, which the table is, too: some likely tokens; with more, each token's own successor would be itself


def writers(config: OneTableConfig, folder: str, drawer: Drawer) -> Writers:
    """By the name in the model directory. folder: of the family's language model."""
    vocabulary, merges = make_vocabulary(config.tokens.first)
    added = {name: config.tokens.first + place for place, name in enumerate(config.tokens.names)}
    texts = {
        "config.json": lambda: json.dumps(_qwen2_config(config), indent=2),
        "tokenizer.json": lambda: _tokenizer(vocabulary, merges, config).to_str(),
        "tokenizer_config.json": lambda: _json(_tokenizer_config(config, added)),
        "special_tokens_map.json": lambda: _json(_special_tokens_map(config)),
        "added_tokens.json": lambda: _json(dict(sorted(added.items()))),
        "vocab.json": lambda: json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": lambda: "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in merges)]),
    }
    made: Writers = {f"{folder}/{name}": _writer(content) for name, content in texts.items()}
    made[f"{folder}/{FILE_NAME}"] = lambda path: save_file(_state(config, drawer), path, metadata={"format": "pt"})
    return made


def _writer(content: Callable[[], str]) -> Callable[[Path], object]:
    return lambda path: path.write_text(content(), encoding="utf-8", newline="\n")


def _json(values: object) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _state(config: OneTableConfig, drawer: Drawer) -> dict[str, Any]:
    def rule(key: str, shape: Shape) -> Scale:
        return fan_in_scale(shape, TABLE_GAIN) if key == TABLE else common_scale(key, shape)

    return drawer.state_dict(FILE_NAME, expected_shapes(config), rule)


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], config: OneTableConfig) -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = make_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    names = config.tokens.names
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=place < NUM_SPECIAL) for place, name in enumerate(names)])
    return tokenizer


def _qwen2_config(config: OneTableConfig) -> dict[str, Any]:
    ids = {"bos_token_id": config.tokens.first, "eos_token_id": config.tokens.stop}
    window = config.max_position_embeddings
    return qwen2_config(config, config.table_size, "bfloat16", sliding_window=window, transformers_version="4.43.1", **ids)


def _tokenizer_config(config: OneTableConfig, added: dict[str, int]) -> dict[str, Any]:
    names = config.tokens.names
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return {
        "add_bos_token": False,
        **qwen2_tokenizer_config(added, names[1:NUM_SPECIAL], model_max_length=131072, **ends),
    }


def _special_tokens_map(config: OneTableConfig) -> dict[str, Any]:
    return {
        "additional_special_tokens": list(config.tokens.names[1:NUM_SPECIAL]),
        "eos_token": {"content": "<|im_end|>", **FLAGS},
        "pad_token": {"content": "<|endoftext|>", **FLAGS},
    }
