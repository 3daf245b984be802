"""``model.safetensors`` of a one-table model in, the tensors of the torch engine out. Strict: every key and shape, and no other key.

The file is float32, whatever its ``config.json`` says. The engine's embedding is the table and, behind it, its rows of voices and speech
once more (``OneTableConfig``); its head is a copy of rows of the table: of the whole vocabulary only what can be sampled is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import check_state_dict, find_file
from bistream.errors import CheckpointError
from bistream.text2token.weights import LayerWeights, ModelWeights

FILE_NAME = "model.safetensors"
TABLE = "model.embed_tokens.weight"


def expected_shapes(config: OneTableConfig) -> dict[str, tuple[int, ...]]:
    """Every key of the file with its shape: 290 for 24 layers. There is no ``lm_head``."""
    hidden, key_size = config.hidden_size, config.num_key_value_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {TABLE: (config.table_size, hidden), "model.norm.weight": (hidden,)}
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        for name, size in (("q", hidden), ("k", key_size), ("v", key_size)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (size, hidden)
            shapes[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, config.intermediate_size)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    return shapes


def speech_rows(config: OneTableConfig) -> list[int]:
    """Rows of the table that speech is sampled from: the semantic tokens, then the id that ends it."""
    return [*config.tokens.ids("bicodec_semantic"), config.tokens.stop]


def voice_rows(config: OneTableConfig) -> list[int]:
    """Those that a voice is sampled from. The id at the end is never allowed."""
    return [*(row for rows in config.voice_rows for row in rows), config.tokens.stop]


def build_weights(state: Mapping[str, Tensor], config: OneTableConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """With the head of speech. Raises ``CheckpointError`` for a missing, extra or misshapen key."""
    check_state_dict(FILE_NAME, state, expected_shapes(config))

    def plain(*keys: str) -> Tensor:
        parts = [state[key].to(device=device, dtype=dtype) for key in keys]
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    table, head = state[TABLE], speech_rows(config)
    return ModelWeights(
        embedding=torch.cat((table, table[voice_rows(config)[:-1]], table[head])).to(device=device, dtype=dtype),
        layers=tuple(
            LayerWeights(
                input_norm=plain(f"{layer}.input_layernorm.weight"),
                qkv_weight=plain(*(f"{layer}.self_attn.{name}_proj.weight" for name in "qkv")),
                qkv_bias=plain(*(f"{layer}.self_attn.{name}_proj.bias" for name in "qkv")),
                output_weight=plain(f"{layer}.self_attn.o_proj.weight"),
                post_norm=plain(f"{layer}.post_attention_layernorm.weight"),
                gate_up_weight=plain(f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"),
                down_weight=plain(f"{layer}.mlp.down_proj.weight"),
            )
            for layer in (f"model.layers.{index}" for index in range(config.num_hidden_layers))
        ),
        final_norm=plain("model.norm.weight"),
        head_weight=table[head].to(device=device, dtype=torch.float32),
        head_bias=torch.zeros(len(head), device=device),
    )


def load_state(model_dir: str | Path, text_directory: str) -> dict[str, Tensor]:
    """On the CPU, memory-mapped. Raises ``CheckpointError`` for a file that is missing or damaged."""
    path = find_file(model_dir, f"{text_directory}/{FILE_NAME}")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{text_directory}/{FILE_NAME} could not be read ({type(error).__name__}); the file is damaged, download it again."
        ) from error
