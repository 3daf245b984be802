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
from bistream.text2token.weights import ModelWeights, fused_layers, layer_shapes

FILE_NAME = "model.safetensors"
BODY = "model"
TABLE = f"{BODY}.embed_tokens.weight"


def expected_shapes(config: OneTableConfig) -> dict[str, tuple[int, ...]]:
    """Every key of the file with its shape: 290 for 24 layers. There is no ``lm_head``."""
    hidden = (config.hidden_size,)
    return {TABLE: (config.table_size, *hidden), f"{BODY}.norm.weight": hidden, **layer_shapes(BODY, config)}


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
        layers=fused_layers(plain, BODY, config),
        final_norm=plain(f"{BODY}.norm.weight"),
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
