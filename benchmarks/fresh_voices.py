"""New voices beside callers in real time: does anybody hear a gap while recordings arrive that the server has never heard?

    python scripts/serve.py --health-port 8003 --probe-interval-s 0 &
    python benchmarks/fresh_voices.py --server localhost:8001 --metrics http://localhost:8003/metrics --steady 64 --fresh 10 25 50 \
        --reference-audio assets/reference.wav --reference-text "$(cat assets/reference.txt)"

The steady callers speak one session after another, fed --text-rate words per second, with a voice that the server knows. First alone;
then, for each rate, beside sessions that start at random times (Poisson) with a recording of their own each, and say a short text. All
recordings are the given one, repeated for about --fresh-recording-s seconds, with noise of its own, 80 dB below full scale: another
recording to the server, of another length. Printed for each rate: gaps and first audio of both kinds of callers, and with --metrics the
server's time from a start to its voice, of all sessions (with --steady 0: of new voices alone). The last line is one JSON object. Exit
code 1 when a session failed otherwise than by BUSY. Give the gate room for all from one address: GATE_LIMITS of run.sh.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._callers import Caller, Load, Speech, failure_of_all, poisson_starts, run_load, run_loads
from benchmarks._client_processes import default_processes
from benchmarks._common import describe, hardware, percentiles, table
from benchmarks._preflight import check_server
from benchmarks._scrape import Between, mean, quantile, scrape
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER, fail
from bistream.client.report import SessionReport
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError
from bistream.metrics.families import AUDIO_STAGE

RANKS = (50, 90, 99)
VOICE_STAGE = "voice"
COLUMNS = ("sessions", "refused", "failed", "with_gap", "longest_gap_ms")


def of_listeners(reports: Sequence[SessionReport]) -> dict[str, Any]:
    """What one kind of callers heard. refused: answered BUSY."""
    heard = [one for one in reports if one.error is None and one.chunks]
    refused = sum((one.error or "").startswith("BUSY") for one in reports)
    gaps = [one.gaps() for one in heard]
    return {
        "sessions": len(reports),
        "refused": refused,
        "failed": len(reports) - len(heard) - refused,
        "with_gap": sum(bool(found) for found in gaps),
        "longest_gap_ms": round(1000 * max((gap for found in gaps for gap in found), default=0.0), 1),
        "first_audio_ms": percentiles([1000 * one.chunks[0].arrived_s for one in heard], *RANKS) if heard else {},
    }


def of_server(between: Between) -> dict[str, float]:
    """Milliseconds from a start until its voice is there, of all sessions: those of known voices are next to nothing."""
    buckets = between.buckets(AUDIO_STAGE.name, VOICE_STAGE)
    ranks = {f"p{rank}": quantile(AUDIO_STAGE.buckets, buckets, rank / 100) for rank in RANKS}
    return {name: round(1000 * value, 2) for name, value in {"mean": mean(buckets), **ranks}.items()}


class Run:
    """The two kinds of callers, and how they are measured together."""

    def __init__(self, options: argparse.Namespace) -> None:
        recording = {"reference_audio": options.reference_audio, "reference_text": options.reference_text}
        known: dict[str, Any] = recording if options.speaker_id is None else {"speaker_id": options.speaker_id}
        self.steady = Speech(options.server, options.text, options.text_rate, security=options.security, **known)
        self._options = options

    def fresh(self, starts_per_s: float) -> tuple[Speech, list[Caller]]:
        """Recordings of an earlier run would be known to the server: so another seed each time."""
        given = self._options
        speech = Speech(
            given.server, given.fresh_text, None, reference_audio=given.reference_audio, reference_text=given.reference_text,
            fresh_seed=secrets.randbits(63), fresh_s=given.fresh_recording_s, security=given.security,
        )  # fmt: skip
        starts = poisson_starts(starts_per_s, given.seconds, random.Random(given.seed))
        return speech, [Caller(begin_s, number=number) for number, begin_s in enumerate(starts)]

    def measure(self, starts_per_s: float) -> dict[str, Any]:
        """starts_per_s: 0: the steady callers alone. Raises ``RuntimeError`` when a client process fails."""
        count, seconds = self._options.steady, self._options.seconds
        steady = [Caller(number / max(1, count), until_s=seconds) for number in range(count)]  # not all in one step of the server
        loads: list[tuple[Speech, Sequence[Caller]]] = [(self.steady, steady)] if steady else []
        if starts_per_s:
            loads.append(self.fresh(starts_per_s))
        before = scrape(self._options.metrics) if self._options.metrics else None
        done = run_loads(loads, self._options.processes or default_processes(max(len(callers) for _, callers in loads)))
        found: dict[str, Any] = {"fresh_per_s": starts_per_s, "client_core_share": round(done[0].process.busiest_client, 3)}
        names = (["steady"] if steady else []) + (["fresh"] if starts_per_s else [])
        found |= {name: of_listeners(load.reports) for name, load in zip(names, done, strict=True)}
        if before is not None:
            found["voice_ms"] = of_server(Between(before, scrape(self._options.metrics)))
        _warn(done[0])
        return found


def _warn(load: Load) -> None:
    if (warning := load.process.warning()) is not None:
        print(f"warning: {warning}")


def print_runs(runs: Sequence[dict[str, Any]]) -> None:
    rows: list[Sequence[object]] = [("fresh/s", "callers", *COLUMNS, "first audio p50 ms", "p99", "voice p50 ms", "p99")]
    for run in runs:
        voice = run.get("voice_ms", {})
        for name in ("steady", "fresh"):
            if (found := run.get(name)) is not None:
                first = found["first_audio_ms"]
                shown = (first, voice if name == "fresh" else {})
                times = [values.get(rank, "") for values in shown for rank in ("p50", "p99")]
                rows.append((run["fresh_per_s"], name, *(found[key] for key in COLUMNS), *times))
    table(rows)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    parser.add_argument("--metrics", metavar="URL", help="of serve.py's --health-port; nobody else may use the server then")
    parser.add_argument("--steady", type=int, default=16, metavar="N", help="callers in real time (default %(default)s)")
    parser.add_argument("--fresh", type=float, nargs="+", default=[10.0, 50.0], metavar="R", help="new voices per second (default 10 50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long callers come, for each rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random times")
    parser.add_argument("--text", default="We walk along the river in the morning, and then we talk about the weather until it is noon.")
    parser.add_argument("--text-rate", type=float, default=10.0, metavar="N", help="words per second (default %(default)s)")
    parser.add_argument("--fresh-text", default="Good morning to you.", help="what the new voices say, given at once")
    parser.add_argument("--fresh-recording-s", type=float, default=5.0, metavar="S", help="length of their recordings, about (default 5)")
    parser.add_argument("--speaker-id", help="the steady callers' registered voice (default: the recording as it is)")
    parser.add_argument("--reference-audio", required=True, metavar="FILE")
    parser.add_argument("--reference-text", required=True)
    parser.add_argument("--processes", type=int, help="of each kind of client (default: one for 32 callers, no more than cores)")
    parser.add_argument("--hardware", help="of the server, for the result (default: this host's processor)")
    parser.add_argument("--out", help="also write the JSON object here")
    add_security_arguments(parser)
    options = parser.parse_args(words)
    options.security = security_of(parser, options)
    if options.steady < 0 or min(options.fresh) <= 0 or options.seconds <= 0 or options.fresh_recording_s <= 0:
        parser.error("--steady must not be negative, and --fresh, --seconds and --fresh-recording-s must be above 0")
    return options


def main(words: Sequence[str] | None = None) -> int:
    options = parse_arguments(words)
    try:
        check_server(options.server, options.security, COSYVOICE2_BISTREAM.name, decoupled=True)
    except BistreamError as error:
        return fail(f"{error.code}: {error}", EXIT_SERVER)
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)
    run = Run(options)
    if (failure := failure_of_all(run_load(run.steady, [Caller()], 1))) is not None:  # the server knows their voice afterwards
        return fail(failure, EXIT_SERVER)
    runs = [run.measure(rate) for rate in ([0.0] if options.steady else []) + options.fresh]
    print_runs(runs)
    named = ("steady", "seconds", "text", "text_rate", "fresh_text", "fresh_recording_s", "speaker_id", "seed")
    config = {name: getattr(options, name) for name in named}
    found = describe("fresh_voices", config, {"runs": runs}, options.hardware or hardware())
    if options.out is not None:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return int(any(run[name]["failed"] for run in runs for name in ("steady", "fresh") if name in run))


if __name__ == "__main__":
    sys.exit(main())
