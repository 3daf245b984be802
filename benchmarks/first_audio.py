"""Load test of a running server: the time to the first audio and the gaps that callers hear, and where that time goes, stage by stage.

    python scripts/serve.py --health-port 8003 --probe-interval-s 0 &
    python benchmarks/first_audio.py --metrics http://localhost:8003/metrics --closed 1 16 64 128 256 --open 8 32 --texts whole pieces \
        --text "What they all say." --speaker-id anna --reference-audio assets/reference.wav --reference-text "$(cat assets/reference.txt)"
    python benchmarks/first_audio.py --closed 64 --fresh 10 50 --texts pieces ...                        new voices beside those callers

Each given voice (registered, recording) is measured with each kind of text and each load: closed, N callers with a session after the
other; open, R starts per second at random times (Poisson), whatever the server does; fresh, for --seconds, callers as in closed beside R
sessions per second with a recording of their own each: the given one with noise 80 dB below full scale, which the server has never heard.
With --metrics the result has the time of each stage, as the difference of two scrapes; the
server should have nothing else to do then, not even probes. Quantiles of the server are interpolated in the buckets of its histograms.
Exit code 1 when a session failed otherwise than by BUSY. Give the gate room for all from one address: 0 for
``--sessions-per-address``, ``--streams-per-address`` and ``--starts-per-second`` of ``scripts/serve.py``.
"""

from __future__ import annotations

import argparse
import itertools
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._callers import Caller, Speech, failure_of_all, poisson_starts, run_loads
from benchmarks._client_processes import default_processes
from benchmarks._common import percentiles, report, table
from benchmarks._preflight import check_server
from benchmarks._scrape import Between, mean, quantile, scrape
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER, fail
from bistream.client.report import SessionReport
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError
from bistream.metrics.catalogue import AUDIO_STAGE, AUDIO_TTFP, HOP_STAGES, OUTER_STAGES, TOKENS_STAGES

INNER = {"tokens": TOKENS_STAGES, "hop": HOP_STAGES}
BETWEEN = "between_processes"  # what the inner stages leave of their outer one
RANKS = (50, 90, 99)
FRESH_TEXT = "Good morning to you."  # what new voices say
Stages = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Case:
    """One row of the measurement. name: of the load. fresh: callers with new voices, and what they say."""

    name: str
    speech: Speech
    callers: tuple[Caller, ...]
    fresh: tuple[Speech, tuple[Caller, ...]] | None = None


def budget(between: Between) -> Stages:
    """Milliseconds by stage: mean, p50, p99; inner stages as ``tokens.lm_queue``; the rest of an outer one has a mean only."""
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
    shares = {"p50": 0.5, "p99": 0.99}
    values = {"mean": mean(buckets), **{name: quantile(AUDIO_STAGE.buckets, buckets, share) for name, share in shares.items()}}
    return {name: round(1000 * value, 2) for name, value in values.items()}


def server_first_audio(between: Between, kind: str) -> dict[str, float]:
    buckets = between.buckets(AUDIO_TTFP.name, kind)
    found = {f"p{rank}": quantile(AUDIO_TTFP.buckets, buckets, rank / 100) for rank in RANKS}
    return {name: round(1000 * value, 2) for name, value in {"mean": mean(buckets), **found}.items()}


def heard(reports: Sequence[SessionReport]) -> dict[str, Any]:
    """Counts and times of sessions as their callers saw them. refused: answered BUSY."""
    done = [one for one in reports if one.error is None and one.chunks]
    refused = [one for one in reports if (one.error or "").startswith("BUSY")]
    gaps = [one.gaps() for one in done]
    return {
        "sessions": len(reports),
        "failed": len(reports) - len(done) - len(refused),
        "refused": len(refused),
        "refused_ms": percentiles([1000 * one.wall_s for one in refused], *RANKS) if refused else {},
        "sessions_with_gap": sum(bool(found) for found in gaps),
        "longest_gap_ms": round(1000 * max((gap for found in gaps for gap in found), default=0.0), 1),
        "first_audio_client_ms": percentiles([1000 * one.chunks[0].arrived_s for one in done], *RANKS) if done else {},
        "audio_s": round(sum(one.audio_s for one in done), 3),
    }


def text_kind(speech: Speech) -> str:
    return "whole" if speech.text_rate is None else "pieces"


def cases(options: argparse.Namespace) -> Iterator[Case]:
    voices: list[dict[str, Any]] = []
    if options.speaker_id is not None:
        voices.append({"speaker_id": options.speaker_id})
    recording = {"reference_audio": options.reference_audio, "reference_text": options.reference_text}
    if options.reference_audio is not None and not (options.fresh and voices):
        voices.append(recording)
    for voice, kind in itertools.product(voices, options.texts):
        text_rate = options.text_rate if kind == "pieces" else None
        speech = Speech(options.server, options.text, text_rate, sample_rate=options.sample_rate, security=options.security, **voice)
        for count in options.closed:
            until_s = options.seconds if options.fresh else 0.0
            begins = [options.spread_s * number / count for number in range(count)]
            callers = tuple(Caller(begin_s, 1 if options.fresh else options.requests, until_s) for begin_s in begins)
            yield Case(f"closed {count}", speech, callers)
            for starts_per_s in options.fresh:
                yield Case(f"closed {count}, fresh {starts_per_s:g}/s", speech, callers, fresh_callers(options, recording, starts_per_s))
        for starts_per_s in options.open:
            yield Case(f"open {starts_per_s:g}/s", speech, poisson_callers(options, starts_per_s))


def poisson_callers(options: argparse.Namespace, starts_per_s: float) -> tuple[Caller, ...]:
    starts = poisson_starts(starts_per_s, options.seconds, random.Random(options.seed))
    return tuple(Caller(begin_s, number=number) for number, begin_s in enumerate(starts))


def fresh_callers(options: argparse.Namespace, recording: dict[str, Any], starts_per_s: float) -> tuple[Speech, tuple[Caller, ...]]:
    """Recordings of an earlier run would be known to the server: so another seed each time."""
    seed = secrets.randbits(63)
    heard = {"sample_rate": options.sample_rate, "security": options.security}
    speech = Speech(options.server, FRESH_TEXT, fresh_seed=seed, fresh_s=options.fresh_recording_s, **heard, **recording)
    return speech, poisson_callers(options, starts_per_s)


def measure(case: Case, url: str | None, processes: int | None) -> dict[str, Any]:
    """Raises ``RuntimeError`` when a client process fails."""
    loads = [(case.speech, case.callers), *([case.fresh] if case.fresh else [])]
    before = scrape(url) if url else None
    done = run_loads(loads, processes or default_processes(max(len(callers) for _, callers in loads)))
    process, speech = done[0].process, case.speech
    voice = "recording" if speech.speaker_id is None else "registered"
    found = {"load": case.name, "voice": voice, "text": text_kind(speech), **heard(done[0].reports)}
    found["audio_s_per_s"] = round(found["audio_s"] / process.wall_s, 1)
    if case.fresh:
        found["fresh"] = heard(done[1].reports)
    if url and before is not None:
        between = Between(before, scrape(url))
        found |= {"first_audio_server_ms": server_first_audio(between, text_kind(speech)), "stages_ms": budget(between)}
    late_ms = round(1000 * process.latest_start_s, 1)
    found["client"] = {"busiest_core_share": round(process.busiest_client, 3), "latest_start_ms": late_ms}
    print_result(found)
    if (warning := process.warning()) is not None:
        print(f"warning: {warning}")
    return found


def print_result(found: dict[str, Any]) -> None:
    print(f"\n{found['load']}, {found['voice']} voice, {found['text']} text: {found['audio_s_per_s']} audio seconds per second")
    columns = ("sessions", "failed", "refused", "sessions_with_gap", "longest_gap_ms")
    callers = [("callers", found), *([("new voices", found["fresh"])] if "fresh" in found else [])]
    rows: list[Sequence[object]] = [("", *columns, "first audio p50 ms", "p99")]
    for name, one in callers:
        first = one["first_audio_client_ms"]
        rows.append((name, *(one[column] for column in columns), first.get("p50", ""), first.get("p99", "")))
    table(rows)
    if "stages_ms" in found:
        rows = [("stage", "mean ms", "p50", "p99")]
        for name, values in {**found["stages_ms"], "first audio, server": found["first_audio_server_ms"]}.items():
            outer, _, inner = name.partition(".")
            rows.append((f"  {inner}" if inner else outer, values["mean"], values.get("p50", ""), values.get("p99", "")))
        table(rows)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    parser.add_argument("--metrics", metavar="URL", help="of serve.py's --health-port, for the time of each stage")
    parser.add_argument("--closed", type=int, nargs="*", default=[], metavar="N", help="callers at a time")
    parser.add_argument("--requests", type=int, default=3, help="closed: sessions of each caller (default %(default)s)")
    parser.add_argument("--spread-s", type=float, default=0.0, metavar="S", help="closed: first starts within S seconds")
    parser.add_argument("--open", type=float, nargs="*", default=[], metavar="R", help="starts per second")
    parser.add_argument("--fresh", type=float, nargs="*", default=[], metavar="R", help="new voices per second, beside --closed")
    parser.add_argument("--fresh-recording-s", type=float, default=5.0, metavar="S", help="length of their recordings, about (default 5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="open, fresh: how long callers come (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="open, fresh: of the random times")
    parser.add_argument("--text", required=True)
    parser.add_argument("--texts", nargs="+", choices=("whole", "pieces"), default=["whole"])
    parser.add_argument("--text-rate", type=float, default=10.0, metavar="N", help="pieces: words per second (default %(default)s)")
    parser.add_argument("--speaker-id", help="a registered voice; with --fresh, of the callers in --closed")
    parser.add_argument("--reference-audio", metavar="FILE")
    parser.add_argument("--reference-text")
    parser.add_argument("--processes", type=int, help="of the client (default: one for 32 callers, no more than cores)")
    parser.add_argument("--out", help="write the result there as well")
    add_security_arguments(parser)
    options = parser.parse_args(words)
    options.security = security_of(parser, options)
    if options.speaker_id is None and options.reference_audio is None:
        parser.error("no voice: give --speaker-id, or --reference-audio with --reference-text, or both")
    if (options.reference_audio is None) != (options.reference_text is None):
        parser.error("--reference-audio and --reference-text belong together")
    if not options.closed and not options.open:
        parser.error("no load: give --closed, --open, or both")
    if options.fresh and not (options.closed and options.reference_audio):
        parser.error("--fresh needs --closed, --reference-audio and --reference-text")
    return options


def main(words: Sequence[str] | None = None) -> int:
    options, found, known = parse_arguments(words), [], set[Speech]()
    try:
        options.sample_rate = check_server(options.server, options.security, COSYVOICE2_BISTREAM.name, decoupled=True)
        for case in cases(options):
            if case.speech not in known:  # a voice heard for the first time, and a cold server, do not count
                (load,) = run_loads([(case.speech, [Caller()])], 1)
                if (failure := failure_of_all(load)) is not None:
                    return fail(failure, EXIT_SERVER)
                known.add(case.speech)
            found.append(measure(case, options.metrics, options.processes))
    except BistreamError as error:
        return fail(f"{error.code}: {error}", EXIT_SERVER)
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)
    names = ("text", "text_rate", "requests", "seconds", "spread_s", "fresh_recording_s")
    report("first_audio", {name: getattr(options, name) for name in names}, {"runs": found}, options.out)
    return int(any(one["failed"] or one.get("fresh", {}).get("failed") for one in found))


if __name__ == "__main__":
    sys.exit(main())
