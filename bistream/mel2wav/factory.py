"""Chooses the vocoder stage: the only module outside ``cuda/`` and ``graphs/`` that imports them, and only where they can run."""

from __future__ import annotations

import torch

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.device import resolve_device
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.mel2wav.sizes import kernels_need
from bistream.mel2wav.stage import VocoderStage


def vocoder_tier(config: RuntimeConfig, checkpoint: CheckpointConfig) -> TierChoice:
    """The tier for ``config.kernels``, the device and the network's sizes. Raises ``ConfigError`` when the requested tier cannot serve."""
    dtype = torch.float32 if config.dtype == "float32" else torch.float16
    return choose_tier("vocoder", config.kernels, resolve_device(config.device), dtype, kernels_need(checkpoint.vocoder))


def make_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig, choice: TierChoice | None = None) -> VocoderStage:
    """The stage of ``choice`` (None: of ``vocoder_tier``), ready to serve. Raises ``ConfigError``, ``CheckpointError``."""
    choice = choice or vocoder_tier(config, checkpoint)
    if choice.tier is Tier.KERNELS:
        from bistream.mel2wav.cuda.runner import CudaVocoderStage  # noqa: PLC0415  (imports triton)

        stage = CudaVocoderStage(config, checkpoint)
        stage.record()
        return stage
    if choice.tier is Tier.GRAPHS:
        from bistream.mel2wav.graphs.stage import GraphVocoderStage  # noqa: PLC0415  (imports the compiler)

        graphs = GraphVocoderStage(config, checkpoint)
        graphs.record()
        return graphs
    return VocoderStage(config, checkpoint)
