"""A tiny flow with seeded random weights, and prompts and token sequences to feed it."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, DitConfig, DitFlowConfig, EstimatorConfig, FlowConfig, FlowEncoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.gpu.tier import Tier, TierChoice
from bistream.token2mel import weights as unet_weights
from bistream.token2mel.dit import weights as dit_weights
from bistream.token2mel.flow import FlowModel
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2mel.state import FlowState
from bistream.types import VoicePrompt
from tests.unit.token2mel.random_weights import random_state

TINY = FlowConfig(
    encoder=FlowEncoderConfig(input_size=24, output_size=24, attention_heads=2, linear_units=32, num_blocks=1, num_up_blocks=1),
    estimator=EstimatorConfig(channels=(16,), attention_head_dim=8, n_blocks=1, num_mid_blocks=1, num_heads=3),
    vocab_size=50,
    input_size=24,
    n_timesteps=3,
)
CHECKPOINT = CheckpointConfig(flow=TINY)
TINY_DIT = DitFlowConfig(
    dit=DitConfig(dim=32, depth=2, heads=4, dim_head=8), vocab_size=TINY.vocab_size, lookahead_channels=24, n_timesteps=TINY.n_timesteps
)
DIT_CHECKPOINT = CheckpointConfig(flow=TINY_DIT)
MEL_BINS = TINY.output_size
EXACT = 2e-5
"""Largest difference of two ways to compute the same frames in float32: stored state, batches and padding change only the
order of sums inside matrix products (padded keys add exact zeros). Seen: 2e-6."""


def make_stage(
    *,
    flow_state_mb: int = 64,
    left_context_chunks: int = 0,
    dtype: str = "float32",
    reserve_tokens: int = 100,
    checkpoint: CheckpointConfig = CHECKPOINT,
    flow_context_s: float = 300.0,
) -> FlowStage:
    """A stage of the plain tier with a network of its own, which a test may change."""
    network = copy.deepcopy(_network(checkpoint.flow, getattr(torch, dtype)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.stage.flow_tier", lambda *_: TierChoice("flow", Tier.PLAIN, "a test", ()))
        config = RuntimeConfig(
            device="cpu",
            dtype=dtype,
            flow_state_mb=flow_state_mb,
            left_context_chunks=left_context_chunks,
            flow_context_s=flow_context_s,
        )
        return FlowStage(config, checkpoint, reserve_tokens=reserve_tokens, network=network)


@functools.cache
def _network(sizes: FlowConfig, dtype: torch.dtype) -> FlowModel:
    state, device = random_state(sizes), torch.device("cpu")
    if isinstance(sizes, DitFlowConfig):
        return dit_weights.build_network(state, sizes, device, dtype)
    return unet_weights.build_network(state, sizes, device, dtype)


def make_prompt(tokens: int, seed: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        prompt_text="",
        speech_tokens=rng.integers(0, TINY.vocab_size, tokens).astype(np.int32),
        speech_feat=rng.standard_normal((2 * tokens, MEL_BINS)).astype(np.float32),
        speaker_embedding=rng.standard_normal(TINY.spk_embed_dim).astype(np.float32),
    )


def make_tokens(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng([seed, 7]).integers(0, TINY.vocab_size, count).tolist()
    return tokens


def run(stage: FlowStage, prompt: VoicePrompt, hops: list[list[int]], last_is_final: bool = True) -> list[torch.Tensor]:
    """One session alone, hop by hop."""
    state = stage.open(prompt)
    mels = [hop_mel(stage, state, tokens, last_is_final and index == len(hops) - 1) for index, tokens in enumerate(hops)]
    state.close()
    return mels


def hop_mel(stage: FlowStage, state: FlowState, tokens: list[int], finalize: bool = False) -> torch.Tensor:
    result = stage.hop([FlowHop(state, tokens, finalize)])[0]
    assert isinstance(result, torch.Tensor), result
    return result


def assert_same(found: torch.Tensor | BistreamError, expected: torch.Tensor, tolerance: float = EXACT) -> None:
    assert isinstance(found, torch.Tensor), found
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


hop_sizes = st.lists(st.integers(0, 60), min_size=1, max_size=4)
prompt_sizes = st.sampled_from([0, 3, 27, 28, 37, 50, 75, 103])


def cut(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    """Consecutive pieces of the given sizes."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(tokens[start : start + size])
        start += size
    return pieces
