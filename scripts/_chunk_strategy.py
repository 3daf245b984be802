"""Streaming token2wav alone, in chunks of a fixed schedule (upstream's ``streaming_inference.py --strategy``), and its joints.

equal: a second of speech tokens (25 or 50, as the family has) in every chunk. exponential: one, two, four, ... seconds, at most 250 tokens.
A chunk goes out when the tokens of the lookahead are there, too; the remaining tokens are the last one. The tokens come from
the data set where it has them, else from the language model.

The seam meter compares the streamed waveform with one that has no joints: one call of the vocoder over the mel of all chunks, or, of a
codec, the utterance as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bistream.client.audio import WavWriter
from bistream.errors import BistreamError
from bistream.evaluation.seam_meter import SeamReport, joints_of, measure_seams
from bistream.families.audio_format import AudioFormat
from bistream.mel2wav.stage import VocoderHop
from bistream.token2mel.stage import FlowHop
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS
from bistream.token2wav.renderer import Outcome, RendererHop
from bistream.token2wav.speech_stages import SpeechStages
from bistream.types import FloatArray, GenerationOptions, VoicePrompt
from scripts._inference import Utterance
from scripts._stages import Speech, Stages, Tokens

Entry = dict[str, Any]  # of the log: an utterance
STRATEGIES = ("equal", "exponential")


@dataclass(frozen=True)
class Streamed:
    """waveforms: of each chunk. chunk_s: time that each took."""

    waveforms: list[FloatArray]
    chunk_s: list[float]
    seams: SeamReport


def schedule(strategy: str, total: int, rates: AudioFormat) -> list[int]:
    """New tokens of each chunk; the first one has those of the lookahead, too."""
    sizes: list[int] = []
    sent = rates.lookahead_tokens
    while True:
        size = rates.chunk_tokens if strategy == "equal" else min(rates.chunk_tokens * 2 ** len(sizes), MAX_HOP_TOKENS)
        if total - sent < size:
            break
        sizes.append(size if sizes else size + rates.lookahead_tokens)
        sent += size
    return [*sizes, total - sum(sizes)]


class _OfStages:
    """An utterance by flow and vocoder, chunk by chunk; keeps the mel."""

    def __init__(self, stages: SpeechStages, prompt: VoicePrompt, seed: int) -> None:
        self._stages, self._seed = stages, seed
        self._flow, self._vocoder = stages.flow.open(prompt), stages.vocoder.open(seed)
        self._mels: list[torch.Tensor] = []

    def chunk(self, tokens: Tokens, is_last: bool) -> FloatArray:
        """Raises ``BistreamError``."""
        (mel,) = self._stages.flow.hop([FlowHop(self._flow, tokens, is_last)])
        if isinstance(mel, BistreamError):
            raise mel
        self._mels.append(mel)
        (waveform,) = self._stages.vocoder.hop([VocoderHop(self._vocoder, mel, is_last)])
        return waveform

    def without_joints(self) -> FloatArray:
        return self._stages.vocoder.synthesize(torch.cat(self._mels, dim=1), self._seed)

    def close(self) -> None:
        self._flow.close()
        self._vocoder.close()


class _OfRenderer:
    """The same by any renderer, which gives audio alone."""

    def __init__(self, stages: Stages, prompt: VoicePrompt, seed: int) -> None:
        self._stages, self._prompt, self._seed = stages, prompt, seed
        self._rendering = stages.renderer.open(prompt, seed)
        self._tokens: list[int] = []

    def chunk(self, tokens: Tokens, is_last: bool) -> FloatArray:
        self._tokens += tokens
        return _raised(self._stages.renderer.begin([RendererHop(self._rendering, tokens, is_last)]).finish()[0])

    def without_joints(self) -> FloatArray:
        return _raised(self._stages.render_whole(Speech(tuple(self._tokens), self._prompt), self._seed))

    def close(self) -> None:
        self._rendering.close()


def _raised(outcome: Outcome) -> FloatArray:
    if isinstance(outcome, BistreamError):
        raise outcome
    return outcome


@torch.inference_mode()
def stream(stages: Stages, speech: Speech, sizes: Sequence[int], seed: int) -> Streamed:
    """Render one utterance in chunks. Raises ``BistreamError``."""
    renderer = stages.renderer
    waveforms: list[FloatArray] = []
    chunk_s: list[float] = []
    sent = 0
    utterance = _OfStages(renderer, speech.prompt, seed) if isinstance(renderer, SpeechStages) else _OfRenderer(stages, speech.prompt, seed)
    with closing(utterance):
        for index, size in enumerate(sizes):
            begin = time.perf_counter()
            waveforms.append(utterance.chunk(speech.tokens[sent : sent + size], index == len(sizes) - 1))
            chunk_s.append(time.perf_counter() - begin)
            sent += size
        whole = utterance.without_joints()
    joints = joints_of([len(waveform) for waveform in waveforms])
    seams = measure_seams(np.concatenate(waveforms), whole, joints, stages.audio_format)
    return Streamed(waveforms, chunk_s, seams)


def stream_all(
    stages: Stages, utterances: Sequence[Utterance], strategy: str, sampling: GenerationOptions, output: Path, tell: Callable[[Entry], None]
) -> dict[str, Any]:
    """Stream every utterance twice; returns the log, and tells each entry of it at once.

    In the second pass the flow knows the voice; in the first one it does where an earlier utterance had the same. Warms up with another
    voice: the numbers of the first one's speaker, backwards.
    """
    entries: list[Entry] = []
    times = [0.0, 0.0]
    for utterance in tqdm(utterances, unit="utterance", leave=False, delay=2, disable=None):
        try:
            prompt = stages.voice(utterance.voice)
            tokens = utterance.speech_tokens or _tokens(stages, utterance, prompt, sampling)
            stages.renderer.check_tokens(tokens)
            stages.renderer.check_length(len(prompt.speech_tokens) + len(tokens))
            speech, sizes = Speech(tokens, prompt), schedule(strategy, len(tokens), stages.audio_format)
            if not entries:
                other = replace(prompt, speaker_embedding=prompt.speaker_embedding[::-1].copy())
                stream(stages, replace(speech, prompt=other), sizes, sampling.seed)
            passes = [stream(stages, speech, sizes, sampling.seed) for _ in times]
        except BistreamError as error:
            entries.append({"name": utterance.name, "error": f"{error.code}: {error.sentence}"})
            tell(entries[-1])
            continue
        times = [total + sum(one.chunk_s) for total, one in zip(times, passes, strict=True)]
        entries.append(_entry(utterance, sizes, passes, stages.audio_format.sample_rate))
        with WavWriter(output / f"{utterance.name}.wav") as wav:
            wav.sample_rate = stages.audio_format.sample_rate
            wav.write(np.concatenate(passes[-1].waveforms))
        tell(entries[-1])
    audio_s = sum(entry.get("audio_s", 0.0) for entry in entries)
    return {
        "strategy": strategy,
        "audio_s": audio_s,
        "chunks": sum(len(entry.get("chunks", ())) for entry in entries),
        "first_pass_s": times[0],
        "second_pass_s": times[1],
        "real_time_factor": times[1] / audio_s if audio_s else None,
        "utterances": entries,
    }


def _tokens(stages: Stages, utterance: Utterance, prompt: VoicePrompt, sampling: GenerationOptions) -> Tokens:
    (tokens,) = stages.speech_tokens([(utterance.text, prompt)], sampling, utterance.voice.is_cross_lingual)
    if isinstance(tokens, BistreamError):
        raise tokens
    return tokens


def _entry(utterance: Utterance, sizes: Sequence[int], passes: Sequence[Streamed], sample_rate: int) -> Entry:
    known = passes[-1]
    chunks = zip(sizes, known.waveforms, known.chunk_s, strict=True)
    return {
        "name": utterance.name,
        "error": None,
        "audio_s": sum(map(len, known.waveforms)) / sample_rate,
        "first_chunk_s": {"first_pass": passes[0].chunk_s[0], "second_pass": known.chunk_s[0]},
        "chunks": [{"tokens": size, "audio_s": len(waveform) / sample_rate, "took_s": took_s} for size, waveform, took_s in chunks],
        "seams": {
            "worst_click_db": known.seams.worst_click_db,
            "worst_level_step_db": known.seams.worst_level_step_db,
            "joints": [asdict(joint) for joint in known.seams.joints],
        },
    }
