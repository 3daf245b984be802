"""Load test of a running server: many concurrent sessions, each fed its text in pieces, measured as a listener experiences them.

    python benchmarks/sessions.py --server localhost:8001 --num-tasks 4 --requests 3 --reference-audio voice.wav \
        --reference-text "What is said in it." --text "What they all say." [--text-rate 20]

Prints a table for people; the last line is one JSON object. Has the clients' requirements. Exit code 1 when a session failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.errors import BistreamError
from bistream.rates import SAMPLE_RATE
from client.audio import read_reference
from client.client import BistreamClient, ClientSession
from client.client_grpc import feed, paced, split_pieces
from client.report import ChunkRecord, SessionReport


def run_session(start: Callable[[], ClientSession], pieces: Sequence[str], text_rate: float | None) -> SessionReport:
    """One session from its start to its last chunk. text_rate: pieces per second; ``None``: the start brought the whole text."""
    report = SessionReport(session_id="", chunks=[])
    began = time.monotonic()
    try:
        with start() as session:
            report.session_id = session.session_id
            if text_rate is not None:
                threading.Thread(target=feed, args=(session, paced(pieces, text_rate)), daemon=True).start()
            for chunk in session:
                report.chunks.append(ChunkRecord(chunk.arrived_at - began, chunk.waveform.size / SAMPLE_RATE, chunk.text_consumed))
            if session.text_ended_at is not None:
                report.text_ended_s = session.text_ended_at - began
    except (BistreamError, ConnectionError, TimeoutError) as error:
        report.error = str(error)
    report.wall_s = time.monotonic() - began
    return report


def percentiles_ms(values: Sequence[float]) -> dict[str, float]:
    return {f"p{level}": round(1000 * float(np.percentile(values, level)), 1) for level in (50, 90, 99)} if values else {}


def summarise(reports: Sequence[SessionReport], wall_s: float) -> dict[str, Any]:
    done = [report for report in reports if report.error is None and report.chunks]
    first = [report.chunks[0].arrived_s for report in done]
    audio_s = sum(report.audio_s for report in done)
    return {
        "sessions": len(reports),
        "failed": len(reports) - len(done),
        "wall_s": round(wall_s, 3),
        "audio_s": round(audio_s, 3),
        "real_time_factor": round(wall_s / audio_s, 4) if audio_s else None,
        "time_to_first_audio_ms": percentiles_ms(first),
        "sessions_without_gap": sum(not report.gaps() for report in done),
        "longest_gap_ms": round(1000 * max((gap for report in done for gap in report.gaps()), default=0.0), 1),
        "began_before_text_ended": sum(report.audio_began_before_text_ended for report in done),
    }


def print_table(reports: Sequence[SessionReport]) -> None:
    print(f"{'first audio s':>13} {'audio s':>8} {'wall s':>8} {'gaps':>5}  error")
    for report in reports:
        first = report.chunks[0].arrived_s if report.chunks else float("nan")
        print(f"{first:13.3f} {report.audio_s:8.2f} {report.wall_s:8.2f} {len(report.gaps()):5}  {report.error or ''}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    parser.add_argument("--num-tasks", type=int, default=4, help="concurrent sessions (default %(default)s)")
    parser.add_argument("--requests", type=int, default=2, help="sessions of each task, one after another (default %(default)s)")
    parser.add_argument("--text", required=True)
    parser.add_argument("--text-rate", type=float, metavar="N", help="feed N words per second (default: all at once)")
    parser.add_argument("--spread-s", type=float, default=0.0, metavar="S", help="spread the tasks' starts over S seconds")
    parser.add_argument("--reference-audio", required=True, metavar="FILE")
    parser.add_argument("--reference-text", required=True)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    wav: NDArray[np.float32] = read_reference(options.reference_audio)
    client = BistreamClient(options.server)
    voice: dict[str, Any] = {"reference_wav": wav, "reference_text": options.reference_text}
    whole: dict[str, Any] = {"text": options.text, "is_end": True} if options.text_rate is None else {}

    def run_task(number: int) -> list[SessionReport]:
        time.sleep(options.spread_s * number / options.num_tasks)
        return [
            run_session(lambda: client.start(**voice, **whole), split_pieces(options.text), options.text_rate)
            for _ in range(options.requests)
        ]

    began = time.monotonic()
    with ThreadPoolExecutor(options.num_tasks) as tasks:
        reports = [report for task in tasks.map(run_task, range(options.num_tasks)) for report in task]
    summary = summarise(reports, time.monotonic() - began)
    print_table(reports)
    print(json.dumps({"num_tasks": options.num_tasks, "text_rate": options.text_rate, "spread_s": options.spread_s, **summary}))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
