"""Loads a one-table model's engines from a model directory: one that speaks, and one that makes voices, with the same body.

The engine is the torch engine. In its tier ``graphs`` sampling is recorded PyTorch: the kernel samples another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.one_table import OneTableConfig
from bistream.config import RuntimeConfig
from bistream.families.family import Family
from bistream.gpu.claims import TOKENS, gpu_claims
from bistream.gpu.device import open_device
from bistream.gpu.fidelity import facts_of
from bistream.gpu.tier import Tier, choose_tier
from bistream.metrics.recorder import Recorder
from bistream.processes.start_phases import phase
from bistream.text2token.engine_settings import EngineSettings, settings_of
from bistream.text2token.fidelity import bears, measure
from bistream.text2token.one_table.prompts import begin_speech, content_ids
from bistream.text2token.one_table.sampling import make_sampler
from bistream.text2token.one_table.weights import FILE_NAME, build_weights, load_state, voice_rows
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sizes import graphs_need
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.step_runners import BLOCK_SIZES, device_and_dtype
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights
from bistream.voice.analyses import FAST_ANALYSIS_THREADS

# Of the engine that makes voices: as many at a time as are asked for, each of a sentence, its labels and 38 ids more.
VOICE_SESSIONS, VOICE_POSITIONS = FAST_ANALYSIS_THREADS, 512


def load_engines(
    config: RuntimeConfig, sizes: OneTableConfig, family: Family, recorder: Recorder | None = None
) -> tuple[TorchEngine, TorchEngine]:
    """One whose speech tokens are the semantic ones, and one of pitch, speed and global tokens (``voice_design``).

    Raises ``CheckpointError`` naming a file that is missing, damaged or does not fit, or ``ConfigError``; nothing runs then.
    """
    device, dtype = device_and_dtype(config.device, config.dtype)
    if dtype == torch.float16:  # a GPU without bfloat16; the scores would become NaN
        dtype = torch.float32
    open_device(device)
    with phase("language model: weights read"):
        weights = build_weights(load_state(config.model_dir, family.text_directory), sizes, device, torch.float32)
    if config.dtype == "auto" and dtype != torch.float32:
        dtype = _within_bounds(config, sizes, family, weights, dtype)
    tier = choose_tier("language model", config.kernels, device, dtype, graphs_need(sizes))
    settings = settings_of(
        replace(config, max_session_tokens=min(config.max_session_tokens, sizes.longest_sequence)), sizes, BLOCK_SIZES[tier.tier]
    )
    if device.type == "cpu":
        settings = replace(settings, idle_pause=0.0)
    runners = _Runners(weights, sizes, tier.tier, device, dtype)
    speech = runners.make(sizes, weights.head_weight, settings)
    for_voices = replace(
        settings,
        max_sessions=VOICE_SESSIONS,
        max_rows=min(settings.max_rows, VOICE_POSITIONS),
        kv_cache_tokens=VOICE_SESSIONS * VOICE_POSITIONS,
        max_sequence_ids=VOICE_POSITIONS,
    )
    voices = runners.make(sizes.of_voices, weights.embedding[voice_rows(sizes)], for_voices)
    claims = gpu_claims(device, TOKENS) if config.idle_pause > 0.0 else None
    return (
        TorchEngine(speech, settings, tiers=(tier,), recorder=recorder, gpu_claims=claims),
        TorchEngine(voices, for_voices, tiers=(tier,)),
    )


def _within_bounds(config: RuntimeConfig, sizes: OneTableConfig, family: Family, weights: ModelWeights, dtype: torch.dtype) -> torch.dtype:
    """float32 where 16 bit would lose this checkpoint's scores (``text2token.fidelity``); the log says so."""
    device = weights.embedding.device
    files = (f"{family.text_directory}/{FILE_NAME}", *family.text_files, *family.yaml_names)
    facts = facts_of(config.model_dir, files, device, dtype)
    return dtype if bears(facts, lambda: measure(sizes, weights, dtype, _some_ids(sizes))) else torch.float32


def _some_ids(sizes: OneTableConfig) -> Sequence[int]:
    """A sequence of no meaning, always the same."""
    random = np.random.default_rng(0)
    text = random.integers(0, sizes.tokens.first, 24).tolist()
    return [
        *content_ids(sizes.tokens, "task_tts", text),
        *begin_speech(sizes.tokens, random.integers(0, sizes.speech_token_size, 72).tolist()),
    ]


class _Runners:
    """Step runners of one tier over one body, whose tensors they share."""

    def __init__(self, weights: ModelWeights, sizes: OneTableConfig, tier: Tier, device: torch.device, dtype: torch.dtype) -> None:
        """weights: float32, of ``sizes``."""
        self._final_norm = weights.final_norm
        self._weights, self._folded = weights, None
        if tier is Tier.GRAPHS:
            from bistream.text2token.graphs.weights import fold_weights  # noqa: PLC0415

            self._folded = fold_weights(weights, sizes, device, dtype)
        else:
            weights = weights.to(dtype)
            self._weights = replace(weights, layers=tuple(layer.packed() for layer in weights.layers))

    def make(self, sizes: OneTableConfig, head: Tensor, settings: EngineSettings) -> StepRunner:
        """head: float32 [rows, hidden]."""
        bias = head.new_zeros(len(head))
        if self._folded is None:
            weights = replace(self._weights, head_weight=head, head_bias=bias)
            return EagerRunner(Qwen2Model(sizes, weights), settings, make_sampler(sizes, head.device))
        from bistream.text2token.graphs.runner import GraphStepRunner  # noqa: PLC0415
        from bistream.text2token.graphs.weights import with_head  # noqa: PLC0415

        return GraphStepRunner(sizes, with_head(self._folded, head, bias, self._final_norm), settings)
