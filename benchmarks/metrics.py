"""CPU time of the metrics: of one event, of one reading of the gauges, and as a share of a core at a given load. No server, no GPU.

    python benchmarks/metrics.py [--out benchmarks/results/metrics-HOST.json]

Load: what 256 callers with short texts make of a server that computes 590 audio seconds per second (docs/log.md).
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import report, table
from bistream.metrics.families import AUDIO_TTFP, SESSION_STARTS
from bistream.metrics.recorder import Recorder
from bistream.metrics.session_log import LOGGER, write_plain_lines
from bistream.orchestration.admission import SessionStart
from bistream.orchestration.playback import Playback
from bistream.orchestration.ports import SessionKey
from bistream.orchestration.session_record import SessionMetrics, SessionRecord
from bistream.text2token.engine import EngineStats, SamplingSpec, TokenSpace, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.step_metrics import StepMetrics
from bistream.token2wav.hop_jobs import AudioSession, HopJob, Token2WavHop
from bistream.token2wav.hop_metrics import HopMetrics
from bistream.types import FinishReason, Sampling, VoicePrompt

CALLERS, CHUNKS = 256, 5  # chunks of a session
# Events per second: sessions of 5.6 s of audio, 590 audio seconds per second, full steps of 1.58 ms, hops in batches of 16.
LOAD = {"session": 105.0, "language model step": 630.0, "batch of 16 hops": 37.0, "gauges of one process": 4.0, "scrape": 0.1}
PROMPT = VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 80), np.float32), np.ones(192, np.float32))


class Silent:
    """``TurnSink``."""

    def on_ids(self, ids: object) -> None: ...

    def on_end(self, result: TurnResult) -> None: ...


def cpu_us(work: Callable[[], object], repeats: int) -> float:
    """CPU microseconds of one call, the least of five rounds: other programs can only add to it."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(repeats):
            work()
        rounds.append(1e6 * (time.process_time() - began) / repeats)
    return min(rounds)


def session(recorder: Recorder) -> Callable[[], None]:
    """All marks, chunks and the end of one session, with its line in the log."""
    metrics = SessionMetrics(recorder)
    start = SessionStart(SessionKey("a-session"), b"", True, None, "", "anna", Sampling(), 1.0, False)

    def work() -> None:
        record, playback = SessionRecord(metrics, start, 1.0), Playback()
        record.voice_ready(1.001)
        for number in range(CHUNKS):
            now = 1.1 + number
            record.hop_done(now - 0.05, now)
            playback.sent(24000, now)
            record.chunk_sent(24000, now)
        record.ended("a-session", 100, 125, playback, FinishReason.EOS, None)

    return work


def step(recorder: Recorder) -> Callable[[], None]:
    """One step of 256 decoding sequences, one of which has just begun; planning and computing it are not included."""
    metrics, space = StepMetrics(recorder), TokenSpace(100, 50)
    metrics.watch(lambda: EngineStats(CALLERS, CALLERS, 1000, 2000), 16)
    scheduler = Scheduler(EngineSettings(max_sessions=CALLERS + 1, max_rows=512, kv_cache_tokens=32768), space)
    sequences = [scheduler.open(str(number), SamplingSpec(), 100) for number in range(CALLERS)]
    for sequence in sequences:
        scheduler.begin_turn(sequence, [1], TurnLimits(90), Silent())
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.apply(plan, [0] * len(plan.sampling))
    newest = scheduler.open("newest", SamplingSpec(), 100)
    scheduler.begin_turn(newest, [1] * 20, TurnLimits(90), Silent())
    plan = scheduler.schedule()
    assert plan is not None

    def work() -> None:
        metrics.opened(newest)
        metrics.turn_begun(newest)
        metrics.step_started(plan)
        metrics.step_done(CALLERS)

    return work


def batch(recorder: Recorder) -> Callable[[], None]:
    metrics = HopMetrics(recorder, lambda: 5, dict)
    hop = Token2WavHop("s", (1,) * 25, finalize=False, playback_buffer_s=0.5)
    jobs = [HopJob(AudioSession("s", PROMPT, 0, 0.0), hop, number % 5 == 0, 10.0, Future()) for number in range(16)]
    return lambda: metrics.batch(jobs, 9.9, 0.1, 10.0)


def measure(folder: str) -> dict[str, float]:
    """Counting as a model process does, into files in ``folder``."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    recorder = Recorder()
    histogram = recorder.histogram(AUDIO_TTFP, "whole")
    found = {
        "Counter.inc": cpu_us(recorder.counter(SESSION_STARTS).inc, 100_000),
        "Histogram.observe": cpu_us(lambda: histogram.observe(0.12), 100_000),
    }
    write_plain_lines(io.StringIO())
    LOGGER.setLevel(logging.INFO)
    found["session"] = cpu_us(session(recorder), 2_000)
    found["language model step"] = cpu_us(step(recorder), 2_000)
    found["batch of 16 hops"] = cpu_us(batch(recorder), 5_000)
    recorder.read_process("model")
    found["gauges of one process"] = cpu_us(recorder.refresh, 200)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    found["scrape"] = cpu_us(lambda: generate_latest(registry), 50)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the result there as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = measure(folder)
    shares = {name: found[name] * rate / 1e4 for name, rate in LOAD.items()}
    rows: list[tuple[object, ...]] = [("event", "CPU us", "per second", "% of a core")]
    for name, microseconds in found.items():
        rows.append((name, f"{microseconds:.2f}", LOAD.get(name, ""), f"{shares[name]:.3f}" if name in shares else ""))
    rows.append(("all", "", "", f"{sum(shares.values()):.3f}"))
    table(rows)
    metrics = {
        "cpu_us": {name: round(value, 3) for name, value in found.items()},
        "core_share": round(sum(shares.values()) / 100, 5),
        "events_per_s": LOAD,
    }
    report("metrics", torch.device("cpu"), {"callers": CALLERS, "chunks_of_a_session": CHUNKS}, metrics, options.out)


if __name__ == "__main__":
    main()
