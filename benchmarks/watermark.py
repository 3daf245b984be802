#!/usr/bin/env python3
"""How surely the watermark is found in recordings with it, also after codecs, and in recordings without it, and its cost.

    bistream evaluate --model-dir assets/voice --speaker-id nora --form one_shot --compare one_shot:watermark=on --keep build/sounds ...
    python benchmarks/watermark.py --marked build/sounds/one_shot:watermark=on --unmarked build/sounds/one_shot --out RESULT.json

All WAV files below the folders; those without it are taken as they are. "found": recordings whose confidence is 0.5 or more. The cost is
that of the filter alone, for a second of audio and for a first hop of 0.44 s, in this process.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import soundfile
import torch
from tqdm import tqdm

from benchmarks._common import report, table
from bistream.audio.resample import resample
from bistream.client.decoding import decode
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray
from bistream.watermark.detector import MARKED, Detector
from bistream.watermark.filter import MarkFilter
from interfaces.audio.encoder import Encoder
from interfaces.audio.formats import OutputFormat

LONGEST_S = 600.0
FIRST_HOP_S, HOP_S, ROUNDS = 0.44, 1.0, 50
AS_IT_IS = "as it is"
Treatment = Callable[[FloatArray, int], tuple[FloatArray, int]]  # of samples at a rate in Hz


def encoded(codec: str, sample_rate: int, bit_rate: int | None = None) -> Treatment:
    def treat(samples: FloatArray, rate: int) -> tuple[FloatArray, int]:
        encoder = Encoder(OutputFormat(codec, sample_rate, bit_rate), sample_rate=rate)
        data = encoder.feed(samples) + encoder.finish()
        return decode(io.BytesIO(data), LONGEST_S).samples, REFERENCE_SAMPLE_RATE

    return treat


def louder(decibels: float) -> Treatment:
    return lambda samples, rate: (np.clip(samples * np.float32(10 ** (decibels / 20)), -1.0, 1.0), rate)


def middle(seconds: float) -> Treatment:
    def treat(samples: FloatArray, rate: int) -> tuple[FloatArray, int]:
        begin = max(0, (len(samples) - round(seconds * rate)) // 2)
        return samples[begin : begin + round(seconds * rate)], rate

    return treat


TREATMENTS: dict[str, Treatment] = {
    AS_IT_IS: lambda samples, rate: (samples, rate),
    "MP3, 64 kbit/s": encoded("mp3", 24_000, 64_000),
    "Opus, 24 kbit/s": encoded("opus", 48_000, 24_000),
    "at 16 kHz": lambda samples, rate: (resample(samples, rate, 16_000), 16_000),
    "6 dB louder": louder(6.0),
    "6 dB fainter": louder(-6.0),
    "2 s of its middle": middle(2.0),
    "G.711, mu-law": encoded("wav_mulaw", 8_000),
    "G.711, A-law": encoded("wav_alaw", 8_000),
}


def confidences(detector: Detector, folder: Path, treatments: Mapping[str, Treatment]) -> dict[str, list[float]]:
    """By treatment, of all recordings."""
    found: dict[str, list[float]] = {name: [] for name in treatments}
    for path in tqdm(sorted(folder.rglob("*.wav")), desc=folder.name, disable=None):
        samples, rate = soundfile.read(path, dtype="float32")
        for name, treat in treatments.items():
            found[name].append(round(detector.confidence(*treat(samples, rate)), 4))
    return found


def cost_ms(seconds: float, rate: int, device: str) -> float:
    """Median time of one session's push of so much audio."""
    mark = MarkFilter.load(rate, rate // 50, torch.device(device))
    samples, state, times = np.zeros(round(seconds * rate), np.float32), mark.open(), list[float]()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        mark.push([state], [samples])
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marked", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--unmarked", nargs="*", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--sample-rate", type=int, default=24_000, help="for the cost (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="for the cost: cpu or cuda (default: %(default)s)")
    parser.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    detector = Detector()
    groups = {f"marked, {name}": found for name, found in confidences(detector, options.marked, TREATMENTS).items()}
    for folder in options.unmarked:
        groups[f"unmarked, {folder.name}"] = confidences(detector, folder, {AS_IT_IS: TREATMENTS[AS_IT_IS]})[AS_IT_IS]
    rows: list[list[object]] = [["recordings", "found", "of", "least", "median", "most"]]
    metrics: dict[str, object] = {}
    for name, found in groups.items():
        values = (sum(one >= MARKED for one in found), len(found), min(found), statistics.median(found), max(found))
        rows.append([name, *values])
        metrics[name] = dict(zip(rows[0][1:], values, strict=True))
    table(rows)
    for name, seconds in (("first hop", FIRST_HOP_S), ("a second", HOP_S)):
        metrics[f"{name}, ms"] = cost_ms(seconds, options.sample_rate, options.device)
    report("watermark", {"device": options.device, "threads": 1}, metrics, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
