"""Seeded random weights of a flow of any size, in the key names of the file. Needs nothing but torch."""

from __future__ import annotations

import math

import torch

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.factory import expected_shapes


def random_state(config: FlowConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights scaled by fan-in, so that activations stay near one and every path matters."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in expected_shapes(config).items():
        is_scale = len(shape) == 1 and key.endswith("weight")
        tensor = torch.randn(shape, generator=generator)
        state[key] = 1 + 0.1 * tensor if is_scale else tensor / math.sqrt(max(1, math.prod(shape[1:])))
    return state
