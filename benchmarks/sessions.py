"""Load test of a running server: many concurrent sessions, each fed its text in pieces, measured as a listener experiences them.

    python benchmarks/sessions.py --server localhost:8001 --num-tasks 4 --requests 3 --reference-audio voice.wav \
        --reference-text "What is said in it." --text "What they all say." [--text-rate 20]

Prints a table for people; the last line is one JSON object. Has the clients' requirements. Exit code 1 when a session failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._callers import Caller, Speech, failure_of_all, run_load
from benchmarks._client_processes import default_processes
from benchmarks._preflight import check_server
from benchmarks._summary import summarise
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER, fail
from bistream.client.report import SessionReport
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError


def print_table(reports: Sequence[SessionReport]) -> None:
    print(f"{'first audio s':>13} {'audio s':>8} {'wall s':>8} {'gaps':>5}  error")
    for report in reports:
        first = f"{report.chunks[0].arrived_s:.3f}" if report.chunks else "none"
        print(f"{first:>13} {report.audio_s:8.2f} {report.wall_s:8.2f} {len(report.gaps()):5}  {report.error or ''}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    parser.add_argument("--num-tasks", type=int, default=4, help="concurrent sessions (default %(default)s)")
    parser.add_argument("--requests", type=int, default=2, help="sessions of each task, one after another (default %(default)s)")
    parser.add_argument("--text", required=True)
    parser.add_argument("--text-rate", type=float, metavar="N", help="feed N words per second (default: all at once)")
    parser.add_argument("--spread-s", type=float, default=0.0, metavar="S", help="spread the tasks' starts over S seconds")
    parser.add_argument("--processes", type=int, help="of the client (default: one for 32 sessions, no more than cores)")
    parser.add_argument("--reference-audio", required=True, metavar="FILE")
    parser.add_argument("--reference-text", required=True)
    parser.add_argument("--voice-hash", action="store_true", help="send the hash of the recording, once the server has heard it")
    add_security_arguments(parser)
    options = parser.parse_args()
    options.security = security_of(parser, options)
    return options


def main() -> int:
    options = parse_arguments()
    try:
        check_server(options.server, options.security, COSYVOICE2_BISTREAM.name, decoupled=True)
    except BistreamError as error:
        return fail(f"{error.code}: {error}", EXIT_SERVER)
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)
    speech = Speech(
        options.server,
        options.text,
        options.text_rate,
        reference_audio=options.reference_audio,
        reference_text=options.reference_text,
        sends_hash=options.voice_hash,
        security=options.security,
    )
    begins = [options.spread_s * number / options.num_tasks for number in range(options.num_tasks)]
    callers = [Caller(begin_s, options.requests) for begin_s in begins]
    load = run_load(speech, callers, options.processes or default_processes(len(callers)))
    if (failure := failure_of_all(load)) is not None:
        return fail(failure, EXIT_SERVER)
    summary = summarise(load.reports, load.process.wall_s)
    print_table(load.reports)
    if (warning := load.process.warning()) is not None:
        print(f"warning: {warning}")
    client = {"client_core_share": round(load.process.busiest_client, 3)}
    print(json.dumps({"num_tasks": options.num_tasks, "text_rate": options.text_rate, "spread_s": options.spread_s, **client, **summary}))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
