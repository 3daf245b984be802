"""Do this checkpoint's flow and vocoder bear 16 bit? Asked once at start, before their stages take memory.

The flow's plain network is computed in both dtypes. The 16-bit vocoder, which exists on GPUs alone, is the plain one with rounded
convolutions: its f0, phases, source and Fourier transforms are float32 in every tier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bistream.audio.reference_tone import recording
from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.families.registry import YAML_NAMES
from bistream.gpu.device import resolve_device
from bistream.gpu.fidelity import Fidelity, Ranges, RoundedConvolutions, facts_of, measured_once, ratio_db
from bistream.gpu.precision import exact_float32
from bistream.mel2wav.factory import make_plain
from bistream.processes.start_phases import phase
from bistream.token2mel.factory import resolve_dtype
from bistream.token2mel.stage import FlowStage
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.build import build_voice_prompt

VOCODER_DTYPE = torch.float16
FLOW, VOCODER = "the flow", "the vocoder"
_FILES = ("flow.pt", "hift.pt", *YAML_NAMES)
_PROMPT_TOKENS, _TOKENS = 25, 30


@dataclass(frozen=True)
class Measured:
    """mel [80, T] and waveform: of float32."""

    flow: Fidelity
    vocoder: Fidelity
    mel: Tensor
    waveform: FloatArray


def within_bounds(config: RuntimeConfig, checkpoint: CheckpointConfig) -> tuple[RuntimeConfig, RuntimeConfig]:
    """The settings of the flow and of the vocoder: the same, or with float32 where 16 bit, chosen by ``auto``, spoils this checkpoint's
    mel or audio; the log says so. Raises ``CheckpointError`` and ``ConfigError``."""
    flow_dtype = resolve_dtype(config.dtype, resolve_device(config.device))
    if config.dtype != "auto" or flow_dtype == torch.float32:
        return config, config
    device = resolve_device(config.device)

    def measure_both() -> list[Fidelity]:
        measured = measure(config, checkpoint, flow_dtype, *something_to_say(checkpoint))
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return [measured.flow, measured.vocoder]

    chosen = []
    with phase("do flow and vocoder bear 16 bit"):
        found = measured_once(
            "token2wav", facts_of(config.model_dir, _FILES, device, flow_dtype, solver_steps=str(checkpoint.flow.n_timesteps)), measure_both
        )
    for fidelity in found:
        fidelity.report()
        chosen.append(config if fidelity.is_enough else replace(config, dtype="float32", kernels="plain"))
    return chosen[0], chosen[1]


@torch.inference_mode()
def measure(
    config: RuntimeConfig, checkpoint: CheckpointConfig, flow_dtype: torch.dtype, prompt: VoicePrompt, tokens: Sequence[int]
) -> Measured:
    """The vocoder is given the float32 mel both times, so that each number is one network's own."""
    with exact_float32():
        mel, flow = _measure_flow(config, checkpoint, flow_dtype, prompt, tokens)
        waveform, vocoder = _measure_vocoder(config, checkpoint, mel)
    return Measured(flow, vocoder, mel, waveform)


def something_to_say(checkpoint: CheckpointConfig) -> tuple[VoicePrompt, list[int]]:
    """A voice with the mel of a tone, and tokens of no meaning; always the same."""
    random, sizes = np.random.default_rng(0), checkpoint.flow
    codes = random.integers(0, sizes.vocab_size, _PROMPT_TOKENS + _TOKENS).astype(np.int32)
    embedding = random.standard_normal(sizes.spk_embed_dim).astype(np.float32)
    voice = build_voice_prompt(recording(), "", codes[:_PROMPT_TOKENS], embedding, checkpoint.family.mel_high_hz)
    return voice, codes[_PROMPT_TOKENS:].tolist()


def _measure_flow(
    config: RuntimeConfig, checkpoint: CheckpointConfig, dtype: torch.dtype, prompt: VoicePrompt, tokens: Sequence[int]
) -> tuple[Tensor, Fidelity]:
    plain = replace(config, kernels="plain")
    stage = FlowStage(replace(plain, dtype="float32"), checkpoint, incremental=False)
    with Ranges(stage.runner.network.named_parameters()) as ranges:
        exact = stage.synthesize(tokens, prompt).float()
    rounded = FlowStage(replace(plain, dtype=str(dtype).removeprefix("torch.")), checkpoint, incremental=False)
    try:
        ratio = ratio_db(exact, rounded.synthesize(tokens, prompt).float())
    except EngineError:  # NaN or infinity
        ratio = -math.inf
    return exact, Fidelity(FLOW, "mel", dtype, ratio, ranges.largest, ranges.place)


def _measure_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig, mel: Tensor) -> tuple[FloatArray, Fidelity]:
    stage = make_plain(config, checkpoint)
    with Ranges(stage.hift.named_parameters()) as ranges:
        exact = stage.synthesize(mel, seed=0)
    fourier = stage.hift.fourier
    with RoundedConvolutions(VOCODER_DTYPE, [*stage.hift.f0_predictor.parameters(), fourier.forward_basis, fourier.inverse_basis]):
        found = stage.synthesize(mel, seed=0)
    ratio = ratio_db(torch.from_numpy(exact), torch.from_numpy(found))
    return exact, Fidelity(VOCODER, "audio", VOCODER_DTYPE, ratio, ranges.largest, ranges.place)
