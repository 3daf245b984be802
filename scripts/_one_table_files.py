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
from bistream.text.tokenizer import make_pre_tokenizer
from bistream.text2token.one_table.weights import FILE_NAME, TABLE, expected_shapes
from scripts._random_weights import Drawer, Scale, Shape, common_scale, fan_in_scale
from scripts._tokenizer_files import make_vocabulary

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
    tokens = config.tokens
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": tokens.first,
        "eos_token_id": tokens.stop,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": config.num_hidden_layers,
        "model_type": "qwen2",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "sliding_window": config.max_position_embeddings,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.table_size,
    }


def _flags(special: bool) -> dict[str, bool]:
    return {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}


def _tokenizer_config(config: OneTableConfig, added: dict[str, int]) -> dict[str, Any]:
    names = config.tokens.names
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(number): {"content": name, **_flags(place < NUM_SPECIAL)} for place, (name, number) in enumerate(added.items())
        },
        "additional_special_tokens": list(names[1:NUM_SPECIAL]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _special_tokens_map(config: OneTableConfig) -> dict[str, Any]:
    flags = {key: value for key, value in _flags(True).items() if key != "special"}
    return {
        "additional_special_tokens": list(config.tokens.names[1:NUM_SPECIAL]),
        "eos_token": {"content": "<|im_end|>", **flags},
        "pad_token": {"content": "<|endoftext|>", **flags},
    }
