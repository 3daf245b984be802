"""Chooses the vocoder stage: kernels in recorded graphs on a Hopper GPU, the plain network elsewhere.

The only module outside this folder's own that imports its kernels, and only where they can run.
"""

from __future__ import annotations

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.device import is_hopper, resolve_device
from bistream.mel2wav.stage import VocoderStage


def make_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig) -> VocoderStage:
    """``config.graphs`` off, or ``dtype`` float32: the plain network on every device."""
    device = resolve_device(config.device)
    if is_hopper(device) and config.graphs and config.dtype != "float32":
        from bistream.mel2wav.cuda.stage import CudaVocoderStage, supports  # noqa: PLC0415  (imports triton)

        if supports(checkpoint):
            stage = CudaVocoderStage(config, checkpoint)
            stage.record()
            return stage
    return VocoderStage(config, checkpoint)
