"""Chooses the vocoder stage: the only module outside ``cuda/`` and ``graphs/`` that imports them, and only where they can run."""

from __future__ import annotations

import torch

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.device import resolve_device
from bistream.gpu.tier import Tier, choose_tier
from bistream.mel2wav.sizes import kernels_need
from bistream.mel2wav.stage import VocoderStage


def make_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig) -> VocoderStage:
    """The stage of the tier that ``config.kernels`` and the device give, ready to serve. Raises ``ConfigError``, ``CheckpointError``."""
    device = resolve_device(config.device)
    dtype = torch.float32 if config.dtype == "float32" else torch.float16
    choice = choose_tier("vocoder", config.kernels, device, dtype, kernels_need(checkpoint.vocoder))
    if choice.tier is Tier.KERNELS:
        from bistream.mel2wav.cuda.stage import CudaVocoderStage  # noqa: PLC0415  (imports triton)

        stage = CudaVocoderStage(config, checkpoint)
        stage.record()
        return stage
    if choice.tier is Tier.GRAPHS:
        from bistream.mel2wav.graphs.stage import GraphVocoderStage  # noqa: PLC0415  (imports the compiler)

        graphs = GraphVocoderStage(config, checkpoint, dtype=dtype)
        graphs.record()
        return graphs
    return VocoderStage(config, checkpoint)
