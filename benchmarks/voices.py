#!/usr/bin/env python3
"""Time from a recording that nobody has heard to its voice, in one process, without a server.

    python benchmarks/voices.py --model-dir FULL --out benchmarks/results/voices-NAME.json

For each program of the networks (``torch``, ``onnx``), on the CPU and on a GPU where there is one, and each batch size, medians in
milliseconds: tokenizer (recordings to speech tokens, log-mel included: what audio_tokenizer computes), speaker (recordings to embeddings
and mels, filter bank included: what speaker_embedding computes), total (one after the other), and together (both at the same time, in two
threads of this process; on the server they are two processes). Every recording is new and of another length, around --seconds. A program
that does not start on a device is reported with its reason; onnx computes on the CPU, whatever the device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks._common import report, table
from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import BistreamError
from bistream.types import FloatArray
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer

PROGRAMS = ("torch", "onnx")
COLUMNS = ("tokenizer", "speaker", "total", "together")
SPREAD = 0.2  # of lengths, both ways


def recording(seconds: float, seed: int) -> FloatArray:
    """A voice-like sound whose length and pitch wander with the seed: float32 [N], 16 kHz."""
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * generator.uniform(1 - SPREAD, 1 + SPREAD) * REFERENCE_SAMPLE_RATE)) / REFERENCE_SAMPLE_RATE
    phase = 2.0 * np.pi * np.cumsum(generator.uniform(90, 220) + 20 * np.sin(time_s * generator.uniform(1, 5))) / REFERENCE_SAMPLE_RATE
    tones = np.sum([np.sin(overtone * phase) / overtone for overtone in range(1, 8)], axis=0)
    sound: FloatArray = (0.1 * tones + 0.005 * generator.standard_normal(len(time_s))).astype(np.float32)
    return sound


def times(tokenizer: SpeechTokenizer, encoder: SpeakerEncoder, waveforms: Sequence[FloatArray]) -> dict[str, float]:
    marks = [time.perf_counter()]
    tokenizer.tokens_of(waveforms)
    marks.append(time.perf_counter())
    encoder.features_of(waveforms)
    marks.append(time.perf_counter())
    with ThreadPoolExecutor(1) as pool:
        tokens = pool.submit(tokenizer.tokens_of, waveforms)
        encoder.features_of(waveforms)
        tokens.result()
    marks.append(time.perf_counter())
    of_tokenizer, of_speaker, together = (1000 * np.diff(marks)).tolist()
    return {"tokenizer": of_tokenizer, "speaker": of_speaker, "total": of_tokenizer + of_speaker, "together": together}


def measure(options: argparse.Namespace, program: str, device: str) -> dict[str, Any]:
    """Medians for each batch size; or why there are none."""
    config = RuntimeConfig(
        model_dir=str(options.model_dir), device=device, num_threads=options.threads, speech_tokenizer=program, speaker_encoder=program
    )
    try:
        began = time.perf_counter()
        networks = SpeechTokenizer.from_config(config), SpeakerEncoder.from_config(config)
    except BistreamError as error:
        return {"not_run": error.sentence}
    found: dict[str, Any] = {"load_s": round(time.perf_counter() - began, 2)}
    seed = 0
    for batch in options.batches:
        rounds = []
        for _ in range(options.rounds + 1):  # the first one warms up
            rounds.append(times(*networks, [recording(options.seconds, seed + index) for index in range(batch)]))
            seed += batch
        found[f"batch {batch}"] = {name: round(statistics.median(one[name] for one in rounds[1:]), 2) for name in COLUMNS}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, help="of either family: holds both ONNX files and the yaml")
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="+", default=devices, help="cpu, cuda or cuda:N (default: cpu, and cuda where there is one)")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--threads", type=int, default=0, help="0: the library's default")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each recording, about (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=10, help="recordings or batches of each kind (default %(default)s)")
    parser.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    pairs = [(program, device) for device in options.devices[::-1] for program in options.programs]
    results = {f"{program} on {device}": measure(options, program, device) for program, device in pairs}
    rows: list[Sequence[object]] = [("program", "batch", *COLUMNS)]
    for name, found in results.items():
        if "not_run" in found:
            print(f"{name} was not run: {found['not_run']}")
        batches = [key for key in found if key.startswith("batch ")]
        rows += [(name, key.removeprefix("batch "), *(found[key][column] for column in COLUMNS)) for key in batches]
    table(rows)
    config = {"seconds": options.seconds, "rounds": options.rounds, "threads": options.threads, "batches": options.batches}
    report("voices", config, results, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
