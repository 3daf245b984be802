"""A small vocoder with seeded random weights, as a model directory, and a voiced mel to feed it."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig, CheckpointConfig, DitFlowConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.mel2wav.factory import expected_shapes

CONFIG = VocoderConfig(base_channels=32, f0_channels=16)
CHECKPOINT = CheckpointConfig(vocoder=CONFIG)
CAUSAL = CausalVocoderConfig(base_channels=32, f0_channels=16)
CAUSAL_CHECKPOINT = CheckpointConfig(flow=DitFlowConfig(), vocoder=CAUSAL)
F0_HZ = 120.0  # about the mean output of the f0 predictor, which ranges from 80 to 190


def random_state(config: VocoderConfig = CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """Weights scaled by fan-in, so that activations stay near one."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for key, shape in expected_shapes(config).items():
        value = torch.randn(shape, generator=generator)
        if key.endswith("alpha"):
            value = 1.0 + 0.2 * value
        elif key.endswith("original0"):
            value = 0.8 + 0.1 * value
        elif key.endswith("bias"):
            value = 0.1 * value
        else:
            value = value / math.sqrt(math.prod(shape[1:]))
        state[key] = value
    state["conv_post.bias"][: CONFIG.istft_n_fft // 2 + 1] -= 1.0  # keeps the audio away from its limit
    state["f0_predictor.classifier.weight"] *= 150.0
    state["f0_predictor.classifier.bias"][:] = F0_HZ
    return state


def write_model(directory: Path, state: dict[str, Tensor]) -> RuntimeConfig:
    torch.save(state, directory / "hift.pt")
    return RuntimeConfig(model_dir=str(directory), device="cpu")


def voiced_mel(num_frames: int, seed: int = 1) -> Tensor:
    """[80, T], changing as slowly as speech (a new value every six frames), with a little noise. T may be 0."""
    generator, size = torch.Generator().manual_seed(seed), max(1, num_frames)
    slow = F.interpolate(torch.randn(1, 80, size // 6 + 2, generator=generator), size=size, mode="linear")[0]
    return (slow + 0.1 * torch.randn(80, size, generator=generator))[:, :num_frames]
