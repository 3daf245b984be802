"""Chooses the vocoder stage: the only module that asks which vocoder a checkpoint has, and the only one outside ``cuda/`` and
``causal/graphs/`` that imports them, where they can run.
"""

from __future__ import annotations

import torch

from bistream.checkpoints.config import CausalVocoderConfig, CheckpointConfig, DitFlowConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.gpu.device import resolve_device
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.mel2wav import weights as symmetric_weights
from bistream.mel2wav.causal import weights as causal_weights
from bistream.mel2wav.causal.noise import reference_noise
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.frames import check_frames
from bistream.mel2wav.sizes import graphs_need
from bistream.mel2wav.stage import VocoderStage
from bistream.mel2wav.vocoder import Vocoder


def expected_shapes(sizes: VocoderConfig) -> dict[str, tuple[int, ...]]:
    """Every key of ``hift.pt`` (without ``generator.``) and its shape."""
    return causal_weights.expected_shapes(sizes) if isinstance(sizes, CausalVocoderConfig) else symmetric_weights.expected_shapes(sizes)


def vocoder_tier(config: RuntimeConfig, checkpoint: CheckpointConfig) -> TierChoice:
    """The tier for ``config.kernels``, the device and the network's sizes. Raises ``ConfigError`` when the requested tier cannot serve."""
    dtype = torch.float32 if config.dtype == "float32" else torch.float16
    device, sizes = resolve_device(config.device), checkpoint.vocoder
    needs = () if isinstance(sizes, CausalVocoderConfig) else graphs_need(sizes)
    return choose_tier("vocoder", config.kernels, device, dtype, needs)


def make_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig, choice: TierChoice | None = None) -> Vocoder:
    """The stage of ``choice`` (None: of ``vocoder_tier``), ready to serve. Raises ``ConfigError``, ``CheckpointError``."""
    check_frames(checkpoint.family)
    choice = choice or vocoder_tier(config, checkpoint)
    if choice.tier is Tier.PLAIN:
        return make_plain(config, checkpoint)
    if isinstance(checkpoint.vocoder, CausalVocoderConfig):
        from bistream.mel2wav.causal.graphs.stage import CausalGraphStage  # noqa: PLC0415  (imports the compiler)

        causal = CausalGraphStage(config, checkpoint.vocoder, _make_causal(config, checkpoint))
        causal.record()
        return causal
    from bistream.mel2wav.cuda.runner import CudaVocoderStage  # noqa: PLC0415  (imports triton)

    stage = CudaVocoderStage(config, checkpoint)
    stage.record()
    return stage


def make_plain(config: RuntimeConfig, checkpoint: CheckpointConfig) -> VocoderStage | CausalVocoderStage:
    """The plain tier."""
    is_causal = isinstance(checkpoint.vocoder, CausalVocoderConfig)
    return _make_causal(config, checkpoint) if is_causal else VocoderStage(config, checkpoint)


def _make_causal(config: RuntimeConfig, checkpoint: CheckpointConfig) -> CausalVocoderStage:
    sizes, flow = checkpoint.vocoder, checkpoint.flow
    assert isinstance(sizes, CausalVocoderConfig)
    assert isinstance(flow, DitFlowConfig), "the reference has the causal vocoder behind a DiT only"
    hift = causal_weights.load_hift(config.model_dir, sizes, resolve_device(config.device))
    noise = torch.cat([hift.m_source.merge_noise(piece.to(hift.m_source.overtones.device)) for piece in reference_noise(flow, sizes)])
    return CausalVocoderStage(config, sizes, noise, hift)
