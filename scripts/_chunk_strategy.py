"""Streaming token2wav alone, in chunks of a fixed schedule (upstream's ``streaming_inference.py --strategy``), and its joints.

equal: 25 speech tokens in every chunk. exponential: 25, 50, 100, ..., at most 250. A chunk goes out when three more tokens are there, and
what is left when the tokens end is the last one. The tokens come from the data set where it has them, else from the language model.

The seam meter compares the streamed waveform with one call of the vocoder over the mel of all chunks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bistream.client.audio import WavWriter
from bistream.errors import BistreamError
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.mel2wav.stage import VocoderHop
from bistream.token2mel.stage import FlowHop
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS
from bistream.token2wav.speech_stages import SpeechStages
from bistream.types import FloatArray, GenerationOptions
from bistream.voice.manner import language_prompt
from scripts._inference import Utterance
from scripts._seam_meter import SeamReport, joints_of, measure_seams
from scripts._stages import Speech, Stages

Entry = dict[str, Any]  # of the log: an utterance
STRATEGIES = ("equal", "exponential")


@dataclass(frozen=True)
class Streamed:
    """waveforms: of each chunk. chunk_s: time that each took."""

    waveforms: list[FloatArray]
    chunk_s: list[float]
    seams: SeamReport

    @property
    def audio_s(self) -> float:
        return sum(len(waveform) for waveform in self.waveforms) / AUDIO_FORMAT.sample_rate


def schedule(strategy: str, total: int) -> list[int]:
    """New tokens of each chunk; the first one has those of the lookahead, too."""
    sizes: list[int] = []
    sent = AUDIO_FORMAT.lookahead_tokens
    while True:
        size = AUDIO_FORMAT.chunk_tokens if strategy == "equal" else min(AUDIO_FORMAT.chunk_tokens * 2 ** len(sizes), MAX_HOP_TOKENS)
        if total - sent < size:
            break
        sizes.append(size if sizes else size + AUDIO_FORMAT.lookahead_tokens)
        sent += size
    return [*sizes, total - sum(sizes)]


@torch.inference_mode()
def stream(stages: SpeechStages, speech: Speech, sizes: Sequence[int], seed: int) -> Streamed:
    """Render one utterance in chunks. Raises ``BistreamError``."""
    flow, vocoder = stages.flow.open(speech.prompt), stages.vocoder.open(seed)
    waveforms: list[FloatArray] = []
    mels: list[torch.Tensor] = []
    chunk_s: list[float] = []
    sent = 0
    try:
        for index, size in enumerate(sizes):
            begin, is_last = time.perf_counter(), index == len(sizes) - 1
            (mel,) = stages.flow.hop([FlowHop(flow, speech.tokens[sent : sent + size], is_last)])
            if isinstance(mel, BistreamError):
                raise mel
            waveforms += stages.vocoder.hop([VocoderHop(vocoder, mel, is_last)])
            chunk_s.append(time.perf_counter() - begin)
            mels.append(mel)
            sent += size
    finally:
        flow.close()
        vocoder.close()
    offline = stages.vocoder.synthesize(torch.cat(mels, dim=1), seed)
    joints = joints_of([len(waveform) for waveform in waveforms])
    return Streamed(waveforms, chunk_s, measure_seams(np.concatenate(waveforms), offline, joints))


def stream_all(
    stages: Stages, utterances: Sequence[Utterance], strategy: str, sampling: GenerationOptions, output: Path, tell: Callable[[Entry], None]
) -> dict[str, Any]:
    """Stream every utterance twice; returns the log, and tells each entry of it at once. Warms up with another voice. In the second pass
    the flow knows the voice; in the first one it does where an earlier utterance had the same."""
    entries: list[Entry] = []
    times = [0.0, 0.0]
    for utterance in tqdm(utterances, unit="utterance", leave=False, delay=2, disable=None):
        try:
            prompt = stages.voice(utterance.voice)
            tokens = utterance.speech_tokens or _tokens(stages, utterance, Speech((), prompt), sampling)
            stages.renderer.check_tokens(tokens)
            stages.renderer.check_length(len(prompt.speech_tokens) + len(tokens))
            speech, sizes = Speech(tokens, prompt), schedule(strategy, len(tokens))
            if not entries:
                stream(
                    stages.renderer,
                    replace(speech, prompt=replace(prompt, speaker_embedding=-prompt.speaker_embedding)),
                    sizes,
                    sampling.seed,
                )
            passes = [stream(stages.renderer, speech, sizes, sampling.seed) for _ in times]
        except BistreamError as error:
            entries.append({"name": utterance.name, "error": f"{error.code}: {error.sentence}"})
            tell(entries[-1])
            continue
        times = [total + sum(one.chunk_s) for total, one in zip(times, passes, strict=True)]
        entries.append(_entry(utterance, sizes, passes))
        with WavWriter(output / f"{utterance.name}.wav") as wav:
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


def _tokens(stages: Stages, utterance: Utterance, speech: Speech, sampling: GenerationOptions) -> tuple[int, ...]:
    told = language_prompt(speech.prompt, sampling.instruct_text, utterance.voice.is_cross_lingual)
    (tokens,) = stages.speech_tokens([(utterance.text, told)], sampling)
    if isinstance(tokens, BistreamError):
        raise tokens
    return tokens


def _entry(utterance: Utterance, sizes: Sequence[int], passes: Sequence[Streamed]) -> Entry:
    known = passes[-1]
    chunks = zip(sizes, known.waveforms, known.chunk_s, strict=True)
    return {
        "name": utterance.name,
        "error": None,
        "audio_s": known.audio_s,
        "first_chunk_s": {"first_pass": passes[0].chunk_s[0], "second_pass": known.chunk_s[0]},
        "chunks": [
            {"tokens": size, "audio_s": len(waveform) / AUDIO_FORMAT.sample_rate, "took_s": took_s} for size, waveform, took_s in chunks
        ],
        "seams": {
            "worst_click_db": known.seams.worst_click_db,
            "worst_level_step_db": known.seams.worst_level_step_db,
            "joints": [asdict(joint) for joint in known.seams.joints],
        },
    }
