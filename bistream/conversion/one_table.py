"""A one-table model's ``model.safetensors`` to the merged checkpoint: its table, and behind it the rows of speech once more.

TensorRT-LLM could load the released folder as it is, but would then score all 166,000 rows of the table, of which 8193 can be sampled. Here
these have a head of their own, with a bias that is minus infinity elsewhere, as in the other families, so that the engine is the same. For
``transformers`` there is no need of it: they load the released folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.one_table import OneTableConfig, check_dtype
from bistream.checkpoints.reader import check_state_dict
from bistream.conversion.merged import EMBEDDING, HEAD, architecture_of, merged_config, save_tensors, write_json
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.text2token.one_table.weights import FILE_NAME, TABLE, expected_shapes, load_state, speech_rows
from bistream.text2token.tensorrt_llm.merged_ids import HEAD_BIAS, WEIGHTS


def merged_table(
    state: Mapping[str, Tensor], config: OneTableConfig, vocabulary: MergedVocabulary, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The merged state dict of a checked ``model.safetensors``."""
    speech = slice(vocabulary.speech_offset, vocabulary.speech_offset + vocabulary.head_rows)
    embedding = torch.zeros(vocabulary.size, config.hidden_size, dtype=dtype)
    embedding[: config.table_size] = state[TABLE]
    head, bias = torch.zeros_like(embedding), torch.full((vocabulary.size,), float("-inf"), dtype=dtype)
    embedding[speech] = head[speech] = state[TABLE][speech_rows(config)].to(dtype)
    bias[speech] = 0.0
    body = {key: tensor.to(dtype).contiguous() for key, tensor in state.items() if key != TABLE}
    return {EMBEDDING: embedding, **body, HEAD: head, HEAD_BIAS: bias}


def write_merged_table(model_dir: Path, checkpoint: CheckpointConfig, out: Path, dtype: torch.dtype) -> MergedVocabulary:
    """Write the merged checkpoint of ``model_dir`` into the existing folder ``out``, without a tokenizer, which TensorRT-LLM is not given.

    Raises ``CheckpointError`` naming a bad file, and ``ConfigError`` for float16.
    """
    config = checkpoint.language_model
    assert isinstance(config, OneTableConfig)
    check_dtype(str(dtype).removeprefix("torch."))
    state = load_state(model_dir, checkpoint.family.text_directory)
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    vocabulary = MergedVocabulary(config.table_size, config.speech_token_size, config.rows)
    save_tensors(merged_table(state, config, vocabulary, dtype), out / WEIGHTS)
    write_json(out / "config.json", {**merged_config(config, vocabulary, dtype), "architectures": [architecture_of(checkpoint.family)]})
    return vocabulary
