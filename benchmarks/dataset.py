"""Load test of a running server with a data set: stage 5 of run.sh, and the counterpart of upstream's ``client_grpc.py``.

    python benchmarks/dataset.py --dataset assets/dataset.jsonl --mode streaming --num-tasks 1 2 4 8 16 26 --out build/streaming
    python benchmarks/dataset.py --dataset yuekai/seed_tts --split wenetspeech4tts --mode offline --num-tasks 4 --upstream-files --out OUT

Each number of tasks is a run over all rows: the rows are dealt out to so many tasks, each of which speaks its rows one after another.
Modes: streaming and offline are upstream's, with the model ``cosyvoice2``; bistream feeds ``cosyvoice2_bistream`` with words.

The folder --out gets ``result.json`` and for each run ``tasks-N/`` with WAV files and upstream's rtf-NAME.txt, where asked for.
Needs requirements/client.txt and requirements/benchmarks.txt.
Exit code: 0, 1 when rows or the server failed, 2 wrong usage, 3 no server, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from benchmarks._client_processes import ProcessLoad, default_processes, run_processes
from benchmarks._common import describe, table
from benchmarks._dataset_callers import MODELS, MODES, Manner, prepare, shares_of
from benchmarks._preflight import check_server
from benchmarks._summary import failures, rtf_text, summarise
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, EXIT_USAGE, fail
from bistream.client.report import SessionReport
from bistream.errors import BistreamError, InvalidInputError
from bistream.evaluation.dataset import Row, read_rows

Run = tuple[list[SessionReport], ProcessLoad]


def speak(options: argparse.Namespace, rows: Sequence[Row], tasks: int, wavs: Path | None, on_report: Callable[[], object]) -> Run:
    """All rows once. Raises ``ConnectionError`` where the server is gone: the rows after it would fail as well."""
    manner = Manner(
        options.server,
        options.mode,
        options.text_rate,
        options.default_voice,
        options.speaker_id,
        wavs,
        options.sample_rate,
        options.security,
    )
    reports: list[SessionReport] = []

    def keep(result: tuple[SessionReport, bool]) -> None:
        report, is_lost = result
        if is_lost:
            raise ConnectionError(
                f"The server was lost after {len(reports)} of {len(rows)} rows ({report.error}); start it and repeat this command."
            )
        reports.append(report)
        on_report()

    shares = shares_of(rows, tasks)
    processes = min(len(shares), options.processes or default_processes(len(shares)))
    return reports, run_processes(prepare, [(manner, shares[number::processes]) for number in range(processes)], keep)


def measure(options: argparse.Namespace, rows: Sequence[Row], tasks: int) -> tuple[dict[str, Any], list[SessionReport]]:
    """A run, and the reports of its rows."""
    if options.warm_up:
        speak(options, rows[: options.warm_up], 1, None, lambda: None)
    folder = options.out / f"tasks-{tasks}"
    if options.wavs or options.upstream_files:
        folder.mkdir(parents=True, exist_ok=True)
    quiet = True if options.quiet else None  # None: on a terminal only
    with tqdm(total=len(rows), desc=f"{tasks} tasks", unit="row", disable=quiet) as progress:
        reports, load = speak(options, rows, tasks, folder if options.wavs else None, progress.update)
    if (warning := load.warning()) is not None:
        print(f"warning: {warning}")
    if options.upstream_files:
        name = options.split or Path(options.dataset).stem
        (folder / f"rtf-{name}.txt").write_text(rtf_text(options.mode, reports, load.wall_s), encoding="utf-8")
    head = {"num_tasks": tasks, "client_core_share": round(load.busiest_client, 3)}
    return {**head, **summarise(reports, load.wall_s)}, reports


def print_runs(runs: Sequence[dict[str, Any]]) -> None:
    rows: list[Sequence[object]] = [
        ("tasks", "rows", "failed", "RTF", "first audio ms: mean", "p50", "p90", "p99", "whole: mean", "p50", "gaps")
    ]
    for run in runs:
        first, whole = run["time_to_first_audio_ms"], run["whole_ms"]
        times = [first.get(name, "") for name in ("mean", "p50", "p90", "p99")] + [whole.get(name, "") for name in ("mean", "p50")]
        gaps = run["sessions"] - run["failed"] - run["sessions_without_gap"]
        rows.append((run["num_tasks"], run["sessions"], run["failed"], run["real_time_factor"] or "", *times, gaps))
    table(rows)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8001", metavar="HOST:PORT", help="gRPC address (default %(default)s)")
    parser.add_argument("--dataset", required=True, metavar="SET", help="Parquet, JSONL, manifest, folder, or name on the hub")
    parser.add_argument("--split", help="of the data set, where it has several, e.g. wenetspeech4tts")
    parser.add_argument("--max-rows", type=int, metavar="N", help="speak the first N rows only")
    parser.add_argument("--mode", choices=MODES, default="streaming", help="default %(default)s")
    parser.add_argument("--num-tasks", type=int, nargs="+", default=[1], metavar="N", help="concurrent tasks, one run for each N")
    parser.add_argument("--text-rate", type=float, default=10.0, metavar="N", help="bistream: words per second (default %(default)s)")
    parser.add_argument("--default-voice", action="store_true", help="send the text alone (upstream's --use-spk2info-cache)")
    parser.add_argument("--speaker-id", help="bistream: a registered voice for all rows, instead of their recordings")
    parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="rows that are spoken before each run (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument("--wavs", action="store_true", help="write the audio")
    parser.add_argument("--upstream-files", action="store_true", help="write rtf-NAME.txt as upstream's program")
    parser.add_argument("--processes", type=int, metavar="N", help="of the client (default: one for 32 tasks, no more than cores)")
    parser.add_argument("--quiet", action="store_true", help="show no progress on a terminal")
    add_security_arguments(parser)
    options = parser.parse_args(arguments)
    numbers = [*options.num_tasks, *(value for value in (options.max_rows, options.processes) if value is not None)]
    if min(numbers) < 1 or options.warm_up < 0 or options.text_rate <= 0:
        parser.error("--num-tasks, --max-rows and --processes must be 1 or more, --warm-up 0 or more, --text-rate above 0")
    if options.speaker_id is not None and options.mode != "bistream":
        parser.error("--speaker-id needs --mode bistream; cosyvoice2 has no such input, only --default-voice")
    if options.default_voice and options.speaker_id is not None:
        parser.error("give either --default-voice or --speaker-id")
    options.security = security_of(parser, options)
    return options


def benchmark(options: argparse.Namespace) -> int:
    """Raises ``BistreamError``, ``ConnectionError`` and ``OSError`` with a sentence."""
    runs: list[dict[str, Any]] = []
    reports: list[SessionReport] = []
    with TemporaryDirectory() as recordings:
        rows = read_rows(options.dataset, options.split, Path(recordings), options.max_rows)
        options.sample_rate = check_server(options.server, options.security, MODELS[options.mode].name, decoupled=options.mode != "offline")
        names = ("dataset", "split", "max_rows", "mode", "text_rate", "default_voice", "speaker_id")
        config = {**{name: getattr(options, name) for name in names}, "rows": len(rows)}
        options.out.mkdir(parents=True, exist_ok=True)
        for tasks in options.num_tasks:
            run, heard = measure(options, rows, tasks)
            runs.append(run)
            reports += heard
            result = describe("dataset", config, {"runs": runs})  # after each run: a later one may be interrupted
            (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_runs(runs)
    sentences = failures(reports)
    for sentence in sentences:
        print(f"error: {sentence}", file=sys.stderr)
    return EXIT_SERVER if sentences else EXIT_OK


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        return benchmark(options)
    except InvalidInputError as error:
        return fail(error.sentence, EXIT_USAGE)
    except BistreamError as error:
        return fail(f"{error.code}: {error}", EXIT_SERVER)
    except ConnectionError as error:
        return fail(str(error), EXIT_CONNECTION)
    except (OSError, RuntimeError) as error:
        return fail(str(error), EXIT_SERVER)
    except KeyboardInterrupt:
        return fail(f"interrupted; {options.out} has the runs that were complete", EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
