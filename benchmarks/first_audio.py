"""Where the time to the first audio goes, stage by stage, under load: from the histograms of a running server.

    python scripts/serve.py --health-port 8003 --probe-interval-s 0 &
    python benchmarks/first_audio.py --server localhost:8001 --metrics http://localhost:8003/metrics --closed 1 16 64 128 256 \
        --open 8 32 --text "What they all say." --texts whole pieces --speaker-id anna \
        --reference-audio assets/reference.wav --reference-text "$(cat assets/reference.txt)"

Each given voice (registered, recording; with --voice-hash also the recording's hash) is measured with each kind of text and each load:
closed, N callers with a session after the other; open, R starts per second at random times (Poisson), whatever the server does. The budget
is the difference of two scrapes, so the server should have nothing else to do, not even probes. Quantiles of the server are interpolated
in the buckets of its histograms; those of the client are exact.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._callers import Caller, Load, Speech, failure_of_all, poisson_starts, run_load
from benchmarks._client_processes import default_processes
from benchmarks._common import percentiles, report, table
from benchmarks._scrape import Between, mean, quantile, scrape
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_SERVER, fail
from bistream.metrics.families import AUDIO_STAGE, AUDIO_TTFP, HOP_STAGES, OUTER_STAGES, TOKENS_STAGES

INNER = {"tokens": TOKENS_STAGES, "hop": HOP_STAGES}
BETWEEN = "between_processes"  # what the inner stages leave of their outer one
RANKS = (50, 90, 99)
Stages = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Case:
    """One row of the measurement. name: of the load. concurrent: callers at a time, at least."""

    name: str
    speech: Speech
    callers: tuple[Caller, ...]
    concurrent: int


def budget(between: Between) -> Stages:
    """Milliseconds by stage: mean, p50, p99; inner stages as ``tokens.lm_queue``; what is left of an outer one has a mean only."""
    stages: Stages = {}
    for outer in OUTER_STAGES:
        stages[outer] = _milliseconds(between, outer)
        for inner in INNER.get(outer, ()):
            stages[f"{outer}.{inner}"] = _milliseconds(between, inner)
        if outer in INNER:
            left = stages[outer]["mean"] - sum(stages[f"{outer}.{inner}"]["mean"] for inner in INNER[outer])
            stages[f"{outer}.{BETWEEN}"] = {"mean": round(left, 2)}
    return stages


def _milliseconds(between: Between, stage: str) -> dict[str, float]:
    buckets = between.buckets(AUDIO_STAGE.name, stage)
    values = {
        "mean": mean(buckets),
        "p50": quantile(AUDIO_STAGE.buckets, buckets, 0.5),
        "p99": quantile(AUDIO_STAGE.buckets, buckets, 0.99),
    }
    return {name: round(1000 * value, 2) for name, value in values.items()}


def server_first_audio(between: Between, kind: str) -> dict[str, float]:
    buckets = between.buckets(AUDIO_TTFP.name, kind)
    found = {f"p{rank}": quantile(AUDIO_TTFP.buckets, buckets, rank / 100) for rank in RANKS}
    return {name: round(1000 * value, 2) for name, value in {"mean": mean(buckets), **found}.items()}


def result(case: Case, load: Load, between: Between) -> dict[str, Any]:
    done = [one for one in load.reports if one.error is None and one.chunks]
    refused = [one for one in load.reports if (one.error or "").startswith("BUSY")]
    audio_s = sum(one.audio_s for one in done)
    speech = case.speech
    process = load.process
    client = percentiles([1000 * one.chunks[0].arrived_s for one in done], *RANKS) if done else {}
    return {
        "load": case.name,
        "voice": voice_kind(speech),
        "text": "whole" if speech.text_rate is None else "pieces",
        "sessions": len(load.reports),
        "failed": len(load.reports) - len(done) - len(refused),
        "refused": len(refused),
        "refused_ms": percentiles([1000 * one.wall_s for one in refused], *RANKS) if refused else {},
        "sessions_with_gap": sum(bool(one.gaps()) for one in done),
        "audio_s_per_s": round(audio_s / load.process.wall_s, 1),
        "first_audio_client_ms": client,
        "first_audio_server_ms": server_first_audio(between, "whole" if speech.text_rate is None else "pieces"),
        "stages_ms": budget(between),
        "client": {
            "busiest_core_share": round(process.busiest_client, 3),
            "latest_start_ms": round(1000 * process.latest_start_s, 1),
        },
    }


def voice_kind(speech: Speech) -> str:
    if speech.speaker_id is not None:
        return "registered"
    return "hash" if speech.sends_hash else "recording"


def print_result(found: dict[str, Any]) -> None:
    print(
        f"\n{found['load']}, {found['voice']} voice, {found['text']} text: {found['sessions']} sessions, {found['failed']} failed, ", end=""
    )
    print(f"{found['refused']} refused, {found['sessions_with_gap']} with a gap, {found['audio_s_per_s']} audio seconds per second")
    rows: list[Sequence[object]] = [("stage", "mean ms", "p50", "p99")]
    for name, values in found["stages_ms"].items():
        outer, _, inner = name.partition(".")
        rows.append((f"  {inner}" if inner else outer, values["mean"], values.get("p50", ""), values.get("p99", "")))
    for where in ("server", "client"):
        values = found[f"first_audio_{where}_ms"]
        rows.append((f"first audio, {where}", values.get("mean", ""), values.get("p50", ""), values.get("p99", "")))
    table(rows)
    client = found["client"]
    print(
        f"busiest client process: {client['busiest_core_share']:.0%} of a core; latest start {client['latest_start_ms']} ms behind its plan"
    )


def cases(options: argparse.Namespace) -> Iterator[Case]:
    voices: list[dict[str, Any]] = []
    if options.speaker_id is not None:
        voices.append({"speaker_id": options.speaker_id})
    if options.reference_audio is not None:
        recording = {"reference_audio": options.reference_audio, "reference_text": options.reference_text}
        voices += [recording, {**recording, "sends_hash": True}] if options.voice_hash else [recording]
    for voice, kind in itertools.product(voices, options.texts):
        speech = Speech(options.server, options.text, options.text_rate if kind == "pieces" else None, security=options.security, **voice)
        for callers in options.closed:
            spread = [options.spread_s * number / callers for number in range(callers)]
            yield Case(f"closed {callers}", speech, tuple(Caller(begin_s, options.requests) for begin_s in spread), callers)
        for starts_per_s in options.open:
            starts = poisson_starts(starts_per_s, options.seconds, random.Random(options.seed))
            yield Case(f"open {starts_per_s:g}/s", speech, tuple(map(Caller, starts)), len(starts))


def measure(case: Case, url: str, processes: int | None) -> dict[str, Any]:
    """One session before the first scrape: a voice heard for the first time, and a cold server, do not count."""
    if (failure := failure_of_all(run_load(case.speech, [Caller()], 1))) is not None:
        sys.exit(fail(failure, EXIT_SERVER))
    before = scrape(url)
    load = run_load(case.speech, case.callers, processes or default_processes(case.concurrent))
    found = result(case, load, Between(before, scrape(url)))
    print_result(found)
    if (warning := load.process.warning()) is not None:
        print(f"warning: {warning}")
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    parser.add_argument("--metrics", default="http://localhost:8003/metrics", metavar="URL", help="of serve.py's --health-port")
    parser.add_argument("--closed", type=int, nargs="*", default=[], metavar="N", help="callers at a time")
    parser.add_argument("--requests", type=int, default=3, help="closed: sessions of each caller (default %(default)s)")
    parser.add_argument("--spread-s", type=float, default=0.0, metavar="S", help="closed: first starts within S seconds")
    parser.add_argument("--open", type=float, nargs="*", default=[], metavar="R", help="starts per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="open: how long callers come (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="open: of the random times")
    parser.add_argument("--text", required=True)
    parser.add_argument("--texts", nargs="+", choices=("whole", "pieces"), default=["whole"])
    parser.add_argument("--text-rate", type=float, default=10.0, metavar="N", help="pieces: words per second (default %(default)s)")
    parser.add_argument("--speaker-id", help="a registered voice")
    parser.add_argument("--reference-audio", metavar="FILE")
    parser.add_argument("--reference-text")
    parser.add_argument("--voice-hash", action="store_true", help="measure the hash of the recording as well")
    parser.add_argument("--processes", type=int, help="of the client (default: one for 32 callers, no more than cores)")
    parser.add_argument("--out", help="write the result there as well")
    add_security_arguments(parser)
    options = parser.parse_args()
    options.security = security_of(parser, options)
    if options.speaker_id is None and options.reference_audio is None:
        parser.error("no voice: give --speaker-id, or --reference-audio with --reference-text, or both")
    if (options.reference_audio is None) != (options.reference_text is None):
        parser.error("--reference-audio and --reference-text belong together")
    if not options.closed and not options.open:
        parser.error("no load: give --closed, --open, or both")
    return options


def main() -> int:
    options = parse_arguments()
    found = [measure(case, options.metrics, options.processes) for case in cases(options)]
    config = {"text": options.text, "text_rate": options.text_rate, "requests": options.requests, "seconds": options.seconds}
    report("first_audio", torch.device("cuda" if torch.cuda.is_available() else "cpu"), config, {"runs": found}, options.out)
    return 1 if any(one["failed"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
