"""The network sizes that the language model's own kernels support."""

from __future__ import annotations

import torch

from bistream.checkpoints.config import LanguageModelConfig

HEAD_SIZE = 64
MOST_SPECIALS = 4  # ids that end a turn: the bits that begin_turns unpacks
CHUNK = 128  # K of one warp where K is the hidden size
NUM_CHUNKS = 8
DOWN_CHUNK = 640  # K of one warp in the down projection


def kernels_need(config: LanguageModelConfig, dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels' unmet requirements, as noun phrases; empty for the released models in bfloat16."""
    rules = (
        (dtype == torch.bfloat16, "bfloat16"),
        (config.head_size == HEAD_SIZE, "a head size of 64"),
        (config.num_attention_heads // config.num_key_value_heads <= 8, "at most 8 query heads per key/value head"),
        (config.hidden_size % CHUNK == 0 and config.hidden_size <= CHUNK * NUM_CHUNKS, "a hidden size of n * 128, at most 1024"),
        (config.intermediate_size % CHUNK == 0, "an intermediate size of n * 128"),
        (config.rows.num_scored <= MOST_SPECIALS, "at most 4 ids that end a turn"),
        (config.intermediate_size <= DOWN_CHUNK * NUM_CHUNKS, "an intermediate size of at most 5120"),
    )
    return tuple(text for good, text in rules if not good)
