"""A step of the language model whose kernels and whose plain form a test runs on the same memory."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.batch import NUM_FIELDS, write_rows
from bistream.text2token.graphs.runner import BLOCK_SIZE
from bistream.text2token.graphs.step import GraphStep
from bistream.text2token.graphs.tuning import Tuning
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.sampler import SamplerState
from bistream.text2token.sequence import Segment
from bistream.text2token.weights import build_weights
from tests.gpu.checks import DEVICE, Draw
from tests.plain_step import scores_of_rows
from tests.unit.text2token.tiny import random_state

SLOTS = 320
BLOCKS = 16  # of a sequence
POSITIONS = BLOCKS * BLOCK_SIZE

REAL = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=500, max_position_embeddings=4096)
CONFIGS = {
    "real": REAL,
    "smallest": dataclasses.replace(
        REAL, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, speech_token_size=120
    ),
    "odd": dataclasses.replace(
        REAL, hidden_size=160, intermediate_size=304, num_attention_heads=5, num_key_value_heads=1, speech_token_size=300
    ),
    "ragged": dataclasses.replace(
        REAL, hidden_size=240, intermediate_size=368, num_attention_heads=15, num_key_value_heads=5, speech_token_size=300
    ),
    "largest": dataclasses.replace(
        REAL, hidden_size=1024, intermediate_size=5120, num_attention_heads=16, num_key_value_heads=2, speech_token_size=4093
    ),
}


class StepBench:
    """Weights that 16 bit represents exactly, so that activations alone are rounded; every sequence has blocks of its own."""

    def __init__(self, config: LanguageModelConfig, dtype: torch.dtype, head: Head | None = None) -> None:
        settings = EngineSettings(SLOTS, SLOTS, SLOTS * POSITIONS, BLOCK_SIZE, POSITIONS)
        state = {key: value.to(dtype).float() for key, value in random_state(config).items()}
        weights = build_weights(state, config, DEVICE, torch.float32)
        self.config = config
        self.step = GraphStep(config, fold_weights(weights, config, DEVICE, dtype), settings, Tuning(), head)
        self.exact = fold_weights(weights, config, DEVICE, torch.float32)
        self.step.table[:SLOTS] = torch.randperm(SLOTS * BLOCKS).view(SLOTS, BLOCKS).int()
        self.kernels = self.step.kernels

    def fill_cache(self, draw: Draw) -> None:
        self.step.cache.blocks.copy_(draw.normal(*self.step.cache.blocks.shape, dtype=self.step.cache.blocks.dtype))

    def plain(self, fields: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the plain form in float32, and the cache that it leaves; the kernels' cache stays as it is."""
        step = self.step
        cache = type(step.cache)(self.config, step.cache.blocks.shape[2], BLOCK_SIZE, DEVICE, torch.float32)
        cache.blocks.copy_(turned_back(step.cache.blocks))
        return scores_of_rows(fields, self.exact, self.config, step.state, cache, step.table), cache.blocks


def turned_back(blocks: Tensor) -> Tensor:
    """The kernels keep a block's values as [kv_heads, head_size, positions]; here [positions, kv_heads, head_size], as the plain cache."""
    layers, _, number, positions, heads, size = blocks.shape
    out = blocks.clone()
    out[:, 1] = blocks[:, 1].reshape(layers, number, heads, size, positions).permute(0, 1, 4, 2, 3)
    return out


def fields_of(*segments: Segment, padding: int = 0) -> Tensor:
    rows = sum(segment.num_rows for segment in segments)
    fields = np.zeros((rows + padding, NUM_FIELDS), np.int32)
    write_rows(fields, segments, SLOTS)
    return torch.from_numpy(fields).to(DEVICE)


@cache
def step_bench(name: str, dtype: torch.dtype = torch.bfloat16, head: Head | None = None) -> StepBench:
    return StepBench(CONFIGS[name], dtype, head)


def copy_of(state: SamplerState) -> SamplerState:
    """The same numbers in memory of its own."""
    copy = SamplerState(len(state.session_ids) - 1, state.space, state.history_size, state.device)
    for name, tensor in tensors_of(state).items():
        getattr(copy, name).copy_(tensor)
    return copy


def tensors_of(state: SamplerState) -> dict[str, Tensor]:
    return {name: value for name, value in vars(state).items() if isinstance(value, Tensor)}
