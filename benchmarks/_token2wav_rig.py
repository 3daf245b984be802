"""Stages with random weights and sessions with a given context, for ``benchmarks/token2wav.py``."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import synchronize
from bistream.checkpoint_config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.family import COSYVOICE2, COSYVOICE3
from bistream.mel2wav.factory import expected_shapes as vocoder_shapes
from bistream.mel2wav.factory import make_vocoder
from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.state import SessionState
from bistream.mel2wav.vocoder import Vocoder
from bistream.rates import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_TOKENS_PER_SECOND
from bistream.token2mel.factory import expected_shapes as flow_shapes
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2mel.state import FlowState
from bistream.types import FloatArray, VoicePrompt
from scripts._random_weights import Drawer, flow_state, vocoder_state
from scripts.make_checkpoint import FAMILY_SIZES

FIRST_HOP_TOKENS = 15 + LOOKAHEAD_TOKENS
SMALL_FIRST_HOP_TOKENS = 12 + LOOKAHEAD_TOKENS  # with first_hop_tokens 12: as many as the first text block yields
TINY = FAMILY_SIZES[COSYVOICE2.name]["tiny"].checkpoint
SIZES = {
    COSYVOICE2.name: {"full": CheckpointConfig(), "tiny": replace(TINY, vocoder=VocoderConfig(base_channels=128, f0_channels=32))},
    COSYVOICE3.name: {name: size.checkpoint for name, size in FAMILY_SIZES[COSYVOICE3.name].items()},
}


@dataclass
class Session:
    flow: FlowState
    vocoder: SessionState
    seed: int

    def close(self) -> None:
        self.flow.close()
        self.vocoder.close()

    @property
    def context_tokens(self) -> int:
        """Tokens whose state is stored, prompt included."""
        return self.flow.committed


class Rig:
    """Flow and vocoder as the service runs them. ``naive``: eager, the whole prefix recomputed in every hop, no flow state."""

    def __init__(self, directory: str, sizes: CheckpointConfig, config: RuntimeConfig, naive: bool = False) -> None:
        self.sizes = sizes
        config = replace(config, model_dir=directory, kernels="plain" if naive else config.kernels)
        began = time.perf_counter()
        self.flow = FlowStage(config, sizes, incremental=not naive)
        self.vocoder: Vocoder = make_vocoder(config, sizes)
        self.device = self.flow.device
        self._drawn: list[int] = np.random.default_rng(1).integers(0, sizes.flow.vocab_size, 20_000).tolist()
        synchronize(self.device)
        self.startup_s = time.perf_counter() - began

    def prompt(self, seconds: float, seed: int = 0) -> VoicePrompt:
        rng = np.random.default_rng(seed)
        count, config = round(seconds * SPEECH_TOKENS_PER_SECOND), self.sizes.flow
        return VoicePrompt(
            prompt_text="",
            speech_tokens=rng.integers(0, config.vocab_size, count).astype(np.int32),
            speech_feat=rng.standard_normal((2 * count, config.output_size)).astype(np.float32),
            speaker_embedding=rng.standard_normal(config.spk_embed_dim).astype(np.float32),
        )

    def tokens(self, count: int, seed: int) -> list[int]:
        """Drawn once, so that drawing costs no time while hops are measured."""
        begin = seed * 101 % (len(self._drawn) - count)
        return self._drawn[begin : begin + count]

    def open(self, prompt: VoicePrompt, seed: int = 0) -> Session:
        return Session(self.flow.open(prompt), self.vocoder.open(seed), seed)

    @torch.inference_mode()
    def hop(self, sessions: Sequence[Session], counts: Sequence[int], finalize: Sequence[bool] | None = None) -> list[Tensor]:
        """``counts`` new tokens of each session through flow and vocoder, in batches of at most 64 as in the service. Returns the mels."""
        ends = list(finalize or [False] * len(sessions))
        mels: list[Tensor] = []
        for first in range(0, len(sessions), 64):
            part = range(first, min(first + 64, len(sessions)))
            hops = [FlowHop(sessions[index].flow, self.tokens(counts[index], index), ends[index]) for index in part]
            found = self.flow.hop(hops)
            for mel in found:
                if isinstance(mel, BistreamError):
                    raise mel
                mels.append(mel)
            self.vocoder.hop([VocoderHop(sessions[index].vocoder, mels[index], ends[index]) for index in part])
        return mels

    @torch.inference_mode()
    def vocode(self, state: SessionState, mel: Tensor, finalize: bool) -> FloatArray:
        """One vocoder hop alone."""
        return self.vocoder.hop([VocoderHop(state, mel, finalize)])[0]

    def advance(self, sessions: Sequence[Session], context_tokens: int, step: int = 100) -> None:
        """Speak until ``context_tokens`` (a multiple of the chunk) are stored, prompt included, and none beyond them is spoken."""
        while True:
            missing = [context_tokens + LOOKAHEAD_TOKENS - len(session.flow.tokens) for session in sessions]
            if max(missing) <= 0:
                break
            self.hop(sessions, [min(step, max(0, count)) for count in missing])
        assert all(session.context_tokens == context_tokens for session in sessions)

    def time_ms(self, work: Callable[[], object]) -> float:
        """Wall time of work that ends with results on the host."""
        synchronize(self.device)
        began = time.perf_counter()
        work()
        synchronize(self.device)
        return (time.perf_counter() - began) * 1e3

    def first_hop_ms(self, count: int, voices: Sequence[VoicePrompt], repeats: int, tokens: int = FIRST_HOP_TOKENS) -> float:
        """Median time of the first hop of ``count`` sessions together, on cached voices in turn."""
        for voice in voices:
            self.flow.warm(voice)
        times = []
        for repeat in range(repeats + 1):
            sessions = [self.open(voices[(repeat + index) % len(voices)], index) for index in range(count)]
            times.append(self.time_ms(lambda: self.hop(sessions, [tokens] * count)))  # noqa: B023  (called at once)
            for session in sessions:
                session.close()
        return statistics.median(times[1:])

    def voices(self, count: int, seconds: tuple[float, float]) -> list[VoicePrompt]:
        """Voices of random length in this range, the same in every call."""
        lengths = np.random.default_rng(2).uniform(*seconds, count)
        return [self.prompt(float(length), seed) for seed, length in enumerate(lengths)]

    def steady_hops_ms(self, count: int, prompt_s: float, context_s: Sequence[float], chunks: int = 1) -> list[float]:
        """Times of hops of 25 tokens times ``chunks`` of ``count`` sessions together, on chunk boundaries, with each of these stored
        contexts (ascending)."""
        prompts = [self.prompt(prompt_s, seed) for seed in range(min(count, 8))]
        sessions = [self.open(prompts[index % len(prompts)], index) for index in range(count)]
        found = []
        for seconds in context_s:
            times = []
            for hop in (-1, 0, 1):  # those around the target context, of which the median counts
                self.advance(sessions, (round(seconds) + hop * chunks) * CHUNK_TOKENS)
                times.append(self.time_ms(lambda: self.hop(sessions, [chunks * CHUNK_TOKENS] * count)))
            found.append(statistics.median(times))
        for session in sessions:
            session.close()
        return found


def random_model(sizes: CheckpointConfig, device: torch.device) -> tempfile.TemporaryDirectory[str]:
    """A directory with ``flow.pt`` and ``hift.pt``; deleted with the returned object."""
    directory = tempfile.TemporaryDirectory(prefix="bistream-benchmark-")
    drawer = Drawer(0, device.type)
    torch.save(flow_state(drawer, flow_shapes(sizes.flow)), Path(directory.name) / "flow.pt")
    vocoder = vocoder_state(drawer, vocoder_shapes(sizes.vocoder), sizes.vocoder)
    torch.save(vocoder, Path(directory.name) / "hift.pt")
    return directory
