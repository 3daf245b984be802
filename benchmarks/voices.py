#!/usr/bin/env python3
"""Time from a recording that nobody has heard to its voice, part by part, in one process.

    python benchmarks/voices.py --model-dir FULL --out benchmarks/results/voices-NAME.json

For each program of the networks (``torch``, ``onnx``), on the CPU and on a GPU where there is one, and each batch size, medians in
milliseconds:

    features   log-mel, filter bank and mel alone, one recording after the other
    tokenizer  recordings to speech tokens, log-mel included: what audio_tokenizer computes
    speaker    recordings to embeddings and mels, filter bank included: what speaker_embedding computes
    total      both, one after the other
    together   both at the same time, in two threads of this process; on the server they are two processes

Every recording is new and of another length, around --seconds. A program that does not start on a device is reported with its reason:
onnx on a GPU needs onnxruntime-gpu. cpu_ms is the CPU time of all threads for total.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks._common import report, table
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.family import COSYVOICE2
from bistream.rates import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray
from bistream.voice.build import prompt_mel
from bistream.voice.features import fbank_16k, log_mel_16k
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from bistream.voice.torch_features import TorchFeatures

PROGRAMS = ("torch", "onnx", "auto", "s3tokenizer")
COLUMNS = ("features", "tokenizer", "speaker", "total", "together", "together_most", "cpu_ms")
SPREAD = 0.2  # of lengths, both ways


def recording(seconds: float, seed: int) -> FloatArray:
    """A voice-like sound whose pitch wanders with the seed: float32 [N], 16 kHz."""
    time_s = np.arange(int(seconds * REFERENCE_SAMPLE_RATE)) / REFERENCE_SAMPLE_RATE
    generator = np.random.default_rng(seed)
    phase = 2.0 * np.pi * np.cumsum(generator.uniform(90, 220) + 20 * np.sin(time_s * generator.uniform(1, 5))) / REFERENCE_SAMPLE_RATE
    tones = np.sum([np.sin(overtone * phase) / overtone for overtone in range(1, 8)], axis=0)
    sound: FloatArray = (0.1 * tones + 0.005 * generator.standard_normal(len(time_s))).astype(np.float32)
    return sound


def recordings(seconds: float, count: int, seed: int) -> list[FloatArray]:
    lengths = np.random.default_rng(seed).uniform(1 - SPREAD, 1 + SPREAD, count) * seconds
    return [recording(float(length), seed + index) for index, length in enumerate(lengths)]


def features_of(device: torch.device | None) -> Callable[[FloatArray], None]:
    """device: None: in numpy."""
    if device is None:
        return lambda waveform: (log_mel_16k(waveform), fbank_16k(waveform), prompt_mel(waveform, COSYVOICE2.mel_high_hz)) and None
    features = TorchFeatures(device)

    @torch.inference_mode()
    def compute(waveform: FloatArray) -> None:
        loaded = features.load(waveform)
        features.log_mel_16k(loaded), features.fbank_16k(loaded)
        features.prompt_mel(loaded, COSYVOICE2.mel_high_hz).cpu()  # waits for all three

    return compute


class Voices:
    """What the two models of the server compute, and how long it takes."""

    def __init__(self, config: RuntimeConfig, device: torch.device | None) -> None:
        self.tokenizer, self.encoder = SpeechTokenizer.from_config(config), SpeakerEncoder.from_config(config)
        self._features = features_of(device)

    def times(self, waveforms: Sequence[FloatArray]) -> dict[str, float]:
        """Milliseconds; each part gets every recording for the first time, as far as caches of shapes go."""
        marks = [time.perf_counter()]
        for waveform in waveforms:
            self._features(waveform)
        marks.append(time.perf_counter())
        cpu_s = time.process_time()
        self.tokenizer.tokens_of(waveforms)
        marks.append(time.perf_counter())
        self.encoder.features_of(waveforms)
        marks.append(time.perf_counter())
        cpu_s = time.process_time() - cpu_s
        with ThreadPoolExecutor(1) as pool:
            tokens = pool.submit(self.tokenizer.tokens_of, waveforms)
            self.encoder.features_of(waveforms)
            tokens.result()
        marks.append(time.perf_counter())
        features, tokenizer, speaker, together = (1000 * np.diff(marks)).tolist()
        parts = {"features": features, "tokenizer": tokenizer, "speaker": speaker, "total": tokenizer + speaker}
        return parts | {"together": together, "cpu_ms": 1000 * cpu_s}


def measure(options: argparse.Namespace, program: str, device: str) -> dict[str, Any]:
    """Medians for each batch size; or why there are none."""
    encoder = program if program in ("torch", "onnx") else "auto"
    try:
        config = RuntimeConfig(
            model_dir=str(options.model_dir), device=device, num_threads=options.threads, onnx_engine_dir=options.engine_dir,
            speech_tokenizer=program, speaker_encoder=encoder,
        )  # fmt: skip
        began = time.perf_counter()
        voices = Voices(config, None if program == "onnx" else torch.device(device))
    except BistreamError as error:
        return {"not_run": error.sentence}
    found: dict[str, Any] = {
        "load_s": round(time.perf_counter() - began, 2),
        "tokenizer_batches": voices.tokenizer.batching.value,
        "speaker_encoder": voices.encoder.provider,
    }
    seed = 0
    for batch in options.batches:
        rounds = []
        for _ in range(options.rounds + 1):  # the first one warms up
            rounds.append(voices.times(recordings(options.seconds, batch, seed)))
            seed += batch
        medians = {name: round(statistics.median(times[name] for times in rounds[1:]), 2) for name in rounds[0]}
        found[f"batch {batch}"] = medians | {"together_most": round(max(times["together"] for times in rounds[1:]), 2)}
        print(f"{program} on {device}, batch {batch}: {found[f'batch {batch}']}", file=sys.stderr)
    return found


def print_results(results: dict[str, dict[str, Any]]) -> None:
    rows: list[Sequence[object]] = [("program", "batch", *COLUMNS)]
    for name, found in results.items():
        if "not_run" in found:
            print(f"{name} was not run: {found['not_run']}")
        for key, times in found.items():
            if key.startswith("batch "):
                rows.append((name, key.removeprefix("batch "), *(times[column] for column in COLUMNS)))
    table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, help="of either family: holds both ONNX files and the yaml")
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="+", default=devices, help="cpu, cuda or cuda:N (default: cpu, and cuda where there is one)")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=["torch", "onnx"])
    parser.add_argument("--engine-dir", default="", help="of TensorRT, which onnx then uses on a GPU")
    parser.add_argument("--threads", type=int, default=0, help="0: the library's default")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each recording, about (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=10, help="recordings or batches of each kind (default %(default)s)")
    parser.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = {
        f"{program} on {device}": measure(options, program, device) for device in options.devices[::-1] for program in options.programs
    }
    print_results(results)
    config = {"seconds": options.seconds, "rounds": options.rounds, "threads": options.threads, "batches": options.batches}
    report("voices", config, results, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
