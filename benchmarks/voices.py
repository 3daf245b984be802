#!/usr/bin/env python3
"""Time from a recording that nobody has heard to its voice: tokens, embedding and mel, in one process, one after the other.

    python benchmarks/voices.py --model-dir FULL --providers cpu cuda tensorrt --batches 1 2 8 --out benchmarks/results/voices-NAME.json
    python benchmarks/voices.py --model-dir FULL --providers cuda --speech-tokenizer onnx torch --batches 1 8

For each program of the speech tokenizer and each provider of onnxruntime, which always runs the speaker encoder: with PyTorch on CUDA it
is on the GPU where onnxruntime-gpu is installed and else on the CPU (``speaker_encoder`` says which). One that does not start here is
reported with its reason. Every recording is new; batches of more than one are of equal length. The server computes the three
parts at the same time, so a voice takes as long as the longest one there (column ``longest_part_s``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks._common import report
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.family import COSYVOICE2
from bistream.rates import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray
from bistream.voice.build import build_voice_prompt
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer

PROGRAMS = ("auto", "onnx", "torch", "s3tokenizer")


@dataclass(frozen=True)
class Times:
    """Seconds of one batch; cpu_s: of all threads of this process."""

    tokens_s: float
    embedding_s: float
    mel_s: float
    cpu_s: float

    @property
    def voice_s(self) -> float:
        return self.tokens_s + self.embedding_s + self.mel_s

    @property
    def longest_part_s(self) -> float:
        return max(self.tokens_s, self.embedding_s, self.mel_s)


def recording(seconds: float, seed: int) -> FloatArray:
    """A voice-like sound whose pitch wanders with the seed: float32 [N], 16 kHz."""
    time_s = np.arange(int(seconds * REFERENCE_SAMPLE_RATE)) / REFERENCE_SAMPLE_RATE
    generator = np.random.default_rng(seed)
    phase = 2.0 * np.pi * np.cumsum(generator.uniform(90, 220) + 20 * np.sin(time_s * generator.uniform(1, 5))) / REFERENCE_SAMPLE_RATE
    tones = np.sum([np.sin(overtone * phase) / overtone for overtone in range(1, 8)], axis=0)
    sound: FloatArray = (0.1 * tones + 0.005 * generator.standard_normal(len(time_s))).astype(np.float32)
    return sound


def analyse(tokenizer: SpeechTokenizer, encoder: SpeakerEncoder, recordings: Sequence[FloatArray]) -> Times:
    marks, cpu_s = [time.perf_counter()], time.process_time()
    tokens = tokenizer.tokens_of(recordings)
    marks.append(time.perf_counter())
    embeddings = encoder.embeddings_of(recordings)
    marks.append(time.perf_counter())
    for one in zip(recordings, tokens, embeddings, strict=True):
        build_voice_prompt(one[0], "What is said.", one[1], one[2], COSYVOICE2.mel_high_hz)  # costs the same in any family
    marks.append(time.perf_counter())
    steps = np.diff(marks).tolist()
    return Times(steps[0], steps[1], steps[2], time.process_time() - cpu_s)


def measure(options: argparse.Namespace, program: str, provider: str) -> dict[str, Any]:
    """Medians for each batch size; or why there are none."""
    device = "cpu" if provider == "cpu" else options.device
    # PyTorch needs no onnxruntime-gpu: where there is none, the speaker encoder is on the CPU.
    providers = provider if program == "onnx" or provider == "cpu" else f"{provider},cpu"
    try:
        config = RuntimeConfig(
            model_dir=str(options.model_dir), device=device, num_threads=options.threads, onnx_providers=providers,
            onnx_engine_dir=options.engine_dir, speech_tokenizer=program,
        )  # fmt: skip
        began = time.perf_counter()
        tokenizer, encoder = SpeechTokenizer.from_config(config), SpeakerEncoder.from_config(config)
    except BistreamError as error:
        return {"not_run": error.sentence}
    found: dict[str, Any] = {
        "load_s": round(time.perf_counter() - began, 2),
        "tokenizer_batches": tokenizer.batching.value,
        "speaker_encoder": encoder.provider,
    }
    seed = 0
    for batch in options.batches:
        rounds = []
        for _ in range(options.rounds + 1):  # the first one warms up
            rounds.append(analyse(tokenizer, encoder, [recording(options.seconds, seed + index) for index in range(batch)]))
            seed += batch
        names = ("voice_s", "longest_part_s", "tokens_s", "embedding_s", "mel_s", "cpu_s")
        medians = {name: round(statistics.median(getattr(times, name) for times in rounds[1:]), 4) for name in names}
        found[f"batch {batch}"] = medians | {"longest_s": round(max(times.voice_s for times in rounds[1:]), 4)}
        print(f"{program}, {provider}, batch {batch}: {found[f'batch {batch}']}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, help="of either family: holds both ONNX files and the yaml")
    parser.add_argument("--providers", nargs="+", choices=("cpu", "cuda", "tensorrt"), default=["cpu"])
    parser.add_argument("--speech-tokenizer", nargs="+", choices=PROGRAMS, default=["onnx"])
    parser.add_argument("--device", default="cuda", help="of the GPU providers (default %(default)s)")
    parser.add_argument("--engine-dir", default="", help="of TensorRT")
    parser.add_argument("--threads", type=int, default=0, help="0: the library's default")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each recording (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10, help="recordings or batches of each kind (default %(default)s)")
    parser.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = {
        f"{program} {provider}": measure(options, program, provider)
        for program in options.speech_tokenizer
        for provider in options.providers
    }
    config = {
        "seconds": options.seconds,
        "rounds": options.rounds,
        "threads": options.threads,
        "speech_tokenizer": options.speech_tokenizer,
    }
    report("voices", torch.device("cuda" if torch.cuda.is_available() else "cpu"), config, results, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
