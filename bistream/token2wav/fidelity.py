"""Do this checkpoint's flow and vocoder bear 16 bit? Asked once at start, before their stages take memory.

The flow's plain network speaks in hops in both dtypes, so that what it stores between hops is part of the answer: in 16 bit that has fewer
bits still. The 16-bit vocoder, which exists on GPUs alone, is the plain one with rounded
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
from bistream.errors import BistreamError, EngineError
from bistream.families.registry import YAML_NAMES
from bistream.gpu.device import resolve_device
from bistream.gpu.fidelity import Fidelity, Ranges, RoundedConvolutions, facts_of, measured_once, ratio_db
from bistream.gpu.precision import exact_float32
from bistream.mel2wav.factory import make_plain
from bistream.processes.start_phases import phase
from bistream.token2mel.factory import resolve_dtype
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.build import build_voice_prompt

VOCODER_DTYPE = torch.float16
FLOW, VOCODER = "the flow", "the vocoder"
_FILES = ("flow.pt", "hift.pt", *YAML_NAMES)
_TOKENS = 30


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
    prompt_tokens = sizes.chunk_tokens + sizes.pre_lookahead_len  # so one chunk of the voice is stored, and all speech attends to it
    codes = random.integers(0, sizes.vocab_size, prompt_tokens + _TOKENS).astype(np.int32)
    embedding = random.standard_normal(sizes.spk_embed_dim).astype(np.float32)
    voice = build_voice_prompt(np.tile(recording(), 2), "", codes[:prompt_tokens], embedding, checkpoint.family.mel_high_hz)
    return voice, codes[prompt_tokens:].tolist()


def _measure_flow(
    config: RuntimeConfig, checkpoint: CheckpointConfig, dtype: torch.dtype, prompt: VoicePrompt, tokens: Sequence[int]
) -> tuple[Tensor, Fidelity]:
    plain = replace(config, kernels="plain", max_sessions=1, flow_state_mb=0)
    session_s = (len(prompt.speech_tokens) + len(tokens)) / checkpoint.flow.tokens_per_second
    stage = FlowStage(replace(plain, dtype="float32"), checkpoint, session_s=session_s)
    with Ranges(stage.runner.network.named_parameters()) as ranges:
        exact = _speak(stage, prompt, tokens)
    rounded = FlowStage(replace(plain, dtype=str(dtype).removeprefix("torch.")), checkpoint, session_s=session_s)
    try:
        ratio = ratio_db(exact, _speak(rounded, prompt, tokens))
    except EngineError:  # NaN or infinity
        ratio = -math.inf
    return exact, Fidelity(FLOW, "mel", dtype, ratio, ranges.largest, ranges.place)


def _speak(stage: FlowStage, prompt: VoicePrompt, tokens: Sequence[int]) -> Tensor:
    """The mel, in hops of a chunk. Raises the error of a hop."""
    state, size = stage.open(prompt), stage.chunk_tokens
    spoken = []
    for begin in range(0, len(tokens), size):
        (mel,) = stage.hop([FlowHop(state, tokens[begin : begin + size], finalize=begin + size >= len(tokens))])
        if isinstance(mel, BistreamError):
            raise mel
        spoken.append(mel.float())
    return torch.cat(spoken, dim=-1)


def _measure_vocoder(config: RuntimeConfig, checkpoint: CheckpointConfig, mel: Tensor) -> tuple[FloatArray, Fidelity]:
    stage = make_plain(config, checkpoint)
    with Ranges(stage.hift.named_parameters()) as ranges:
        exact = stage.synthesize(mel, seed=0)
    fourier = stage.hift.fourier
    with RoundedConvolutions(VOCODER_DTYPE, [*stage.hift.f0_predictor.parameters(), fourier.forward_basis, fourier.inverse_basis]):
        found = stage.synthesize(mel, seed=0)
    ratio = ratio_db(torch.from_numpy(exact), torch.from_numpy(found))
    return exact, Fidelity(VOCODER, "audio", VOCODER_DTYPE, ratio, ranges.largest, ranges.place)
