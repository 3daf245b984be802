"""The network sizes that the language model's own kernels support."""

from __future__ import annotations

import torch

from bistream.config import LanguageModelConfig

HEAD_SIZE = 64
CHUNK = 128  # K of one warp where K is the hidden size
NUM_CHUNKS = 8
DOWN_CHUNK = 640  # K of one warp in the down projection


def kernels_need(config: LanguageModelConfig, dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels' unmet requirements, as noun phrases; empty for CosyVoice2-0.5B in bfloat16."""
    rules = (
        (dtype == torch.bfloat16, "bfloat16"),
        (config.head_size == HEAD_SIZE, "a head size of 64"),
        (config.num_attention_heads // config.num_key_value_heads <= 8, "at most 8 query heads per key/value head"),
        (config.hidden_size % CHUNK == 0 and config.hidden_size <= CHUNK * NUM_CHUNKS, "a hidden size of n * 128, at most 1024"),
        (config.intermediate_size % CHUNK == 0, "an intermediate size of n * 128"),
        (config.intermediate_size <= DOWN_CHUNK * NUM_CHUNKS, "an intermediate size of at most 5120"),
    )
    return tuple(text for good, text in rules if not good)
