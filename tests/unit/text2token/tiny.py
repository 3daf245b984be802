"""A tiny language model with seeded random weights, in the real key names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler, Sampler
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import build_weights, expected_shapes

CONFIG = LanguageModelConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    text_vocab_size=200,
    speech_token_size=120,
    max_position_embeddings=4096,
)


def random_state(config: LanguageModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Normal weights scaled by fan-in; norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in expected_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        state[key] = 1 + 0.1 * values if key.endswith("norm.weight") else values * (shape[-1] ** -0.5 if len(shape) == 2 else 0.1)
        if "embed" in key:
            state[key] = values
    state["llm_decoder.weight"] *= 3  # scores far enough apart to be a distribution with a shape
    if config.head_has_bias:
        state["llm_decoder.bias"][-3:] += 5  # stop ids occur
    return state


@cache
def tiny_model() -> Qwen2Model:
    torch.set_num_threads(1)
    return Qwen2Model(CONFIG, build_weights(random_state(CONFIG), CONFIG, torch.device("cpu"), torch.float32))


def eager_engine(settings: EngineSettings, model: Qwen2Model | None = None, sampler: Sampler | None = None, **options: Any) -> TorchEngine:
    """Of the tiny model, unless another is given. options: of ``TorchEngine``."""
    return TorchEngine(EagerRunner(model or tiny_model(), settings, sampler or RepetitionAwareSampler()), settings, **options)


SPACE = tiny_model().space


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Of PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def library_is_batch_invariant() -> bool:
    """Whether this machine's matrix products, of both widths of the tiny model, give a row the same bits in 4 rows as in 24."""
    return all(_is_invariant(torch.randn(24, width), torch.randn(96, width)) for width in (64, 96))


def _is_invariant(rows: torch.Tensor, matrix: torch.Tensor) -> bool:
    few, many = torch.nn.functional.linear(rows[:4], matrix), torch.nn.functional.linear(rows, matrix)
    batched = torch.matmul(rows.view(6, 4, -1), matrix.T)
    return torch.equal(few, many[:4]) and torch.equal(batched[0], torch.matmul(rows[:4].view(1, 4, -1), matrix.T)[0])


needs_invariance = pytest.mark.skipif(
    not library_is_batch_invariant(), reason="this machine's matrix library is not batch-invariant; MKL_CBWR=AUTO,STRICT may make it so"
)
