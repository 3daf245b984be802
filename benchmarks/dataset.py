"""Load test of a running server with a data set: stage 5 of run.sh, and the counterpart of upstream's ``client_grpc.py``.

    python benchmarks/dataset.py --dataset assets/dataset.jsonl --mode streaming --num-tasks 1 2 4 8 16 26 --out build/streaming
    python benchmarks/dataset.py --dataset yuekai/seed_tts --split wenetspeech4tts --mode offline --num-tasks 4 --upstream-files --out OUT

Each number of tasks is a run over all rows: the rows are dealt out to so many tasks, each of which speaks its rows one after another.
Modes: streaming and offline are upstream's, with the model ``cosyvoice2``; bistream feeds ``cosyvoice2_bistream`` with words.

The folder --out gets ``records.jsonl`` (a line for each row, when it was spoken), ``result.json`` (benchmarks/report.py draws both), and
for each run ``tasks-N/`` with WAV files and upstream's summary files, where asked for. The same command continues a measurement that
was interrupted, and tries again what failed. Needs requirements/client.txt and requirements/benchmarks.txt.
Exit code: 0, 1 when rows or the server failed, 2 wrong usage, 3 no server, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from benchmarks import _dataset_tasks
from benchmarks._callers import report_of
from benchmarks._client_processes import ProcessLoad, Result, default_processes, run_processes
from benchmarks._common import describe, table
from benchmarks._dataset_tasks import Share, plan_of, shares_of
from benchmarks._preflight import ask, check_server
from benchmarks._records import Record, Records
from benchmarks._requests import MODELS, MODES, Manner
from benchmarks._summary import failures, summarise
from benchmarks._upstream_files import rtf_text, statistics_text, write_files
from bistream.client.connection import add_security_arguments, security_of
from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, EXIT_USAGE, fail
from bistream.client.report import SessionReport
from bistream.errors import BistreamError, InvalidInputError
from scripts._dataset import Row, read_rows


@dataclass(frozen=True)
class Run:
    """One pass over the rows. number: its place in --num-tasks, which may name a number of tasks twice."""

    number: int
    tasks: int

    @property
    def folder(self) -> str:
        return f"tasks-{self.tasks}" if self.number == 0 else f"tasks-{self.tasks}-run-{self.number + 1}"


def runs_of(num_tasks: Sequence[int]) -> list[Run]:
    """The second run with the same number of tasks has number 1, and so on."""
    return [Run(list(num_tasks[:index]).count(tasks), tasks) for index, tasks in enumerate(num_tasks)]


def own(records: Sequence[Record], run: Run) -> list[Record]:
    return [record for record in records if (record["run"], record["num_tasks"]) == (run.number, run.tasks)]


def spoken(records: Sequence[Record], run: Run) -> dict[str, SessionReport]:
    """The last report of each row."""
    return {record["id"]: report_of(record["report"]) for record in own(records, run) if "report" in record}


def wall_s(records: Sequence[Record], run: Run) -> float:
    """Of all parts of a run; a part that was interrupted lasted until its last row ended."""
    parts: dict[int, float] = {}
    for record in own(records, run):
        parts[record["part"]] = max(parts.get(record["part"], 0.0), record["ended_s"])
    return sum(parts.values())


def measure(options: argparse.Namespace, manner: Manner, rows: Sequence[Row], run: Run, records: Records) -> None:
    """Speak the rows of a run that have not been spoken yet."""
    done = {name for name, report in spoken(records.all, run).items() if report.error is None and report.chunks}
    waiting = [row for row in rows if row.id not in done]
    if not waiting:
        print(f"{run.tasks} tasks: {options.out} has all rows already; choose another --out, or delete it, to measure again")
        return
    if options.warm_up:
        speak(options, manner, [Share(0, tuple(rows[: options.warm_up]), None)], lambda result: lost_server(result, 0, len(waiting)))
    folder = options.out / run.folder
    if options.wavs or options.upstream_files:
        folder.mkdir(exist_ok=True)
    before = server_statistics(manner) if options.upstream_files else {}
    part = 1 + max((record["part"] for record in own(records.all, run)), default=0)
    head = {"run": run.number, "num_tasks": run.tasks, "part": part}
    shares = [Share(number, tuple(share), folder if options.wavs else None) for number, share in enumerate(shares_of(waiting, run.tasks))]
    kept = list(done)
    quiet = True if options.quiet else None  # None: on a terminal only
    with tqdm(total=len(rows), initial=len(done), desc=f"{run.tasks} tasks", unit="row", disable=quiet) as progress:

        def keep(result: Result) -> None:
            lost_server(result, len(kept), len(rows))
            kept.append(result["report"]["session_id"])
            report = {"id": kept[-1], **{key: value for key, value in result.items() if key != "is_lost"}}
            records.add({**head, **report})
            progress.update()

        load = speak(options, manner, shares, keep)
    records.add({**head, "ended_s": load.wall_s, "client_core_share": load.busiest_client})
    if (warning := load.warning()) is not None:
        print(f"warning: {warning}")
    if options.upstream_files:
        reports = list(spoken(records.all, run).values())
        rtf = rtf_text(manner.mode, reports, wall_s(records.all, run))
        config = ask(manner.server, manner.security, "get_model_config", model_name=MODELS[manner.mode].name)
        write_files(folder, result_name(options), rtf, statistics_text(before, server_statistics(manner)), config)


def speak(options: argparse.Namespace, manner: Manner, shares: Sequence[Share], on_result: Any) -> ProcessLoad:
    processes = min(len(shares), options.processes or default_processes(len(shares)))
    plans = [plan_of(manner, shares[number::processes]) for number in range(processes)]
    return run_processes(Path(_dataset_tasks.__file__), plans, on_result)


def lost_server(result: Result, done: int, rows: int) -> None:
    """Raises ``ConnectionError`` where a row could not be spoken because the server is gone: the rows after it would fail as well."""
    if result["is_lost"]:
        raise ConnectionError(
            f"The server was lost after {done} of {rows} rows ({result['report']['error']}); start it and repeat this command to continue."
        )


def server_statistics(manner: Manner) -> dict[str, Any]:
    return ask(manner.server, manner.security, "get_inference_statistics", model_name="")


def result_name(options: argparse.Namespace) -> str:
    """In the names of upstream's files: its split, else the name of the data set."""
    return options.split or Path(options.dataset).stem


def result_of(config: dict[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """Of all runs with records, in the format of ``benchmarks/results``."""
    found = []
    for run in sorted({Run(record["run"], record["num_tasks"]) for record in records}, key=lambda run: (run.tasks, run.number)):
        reports = spoken(records, run)
        if reports:
            mine = own(records, run)
            share = max((record.get("client_core_share", 0.0) for record in mine), default=0.0)
            head = {
                "num_tasks": run.tasks,
                "run": run.number,
                "parts": len({record["part"] for record in mine}),
                "client_core_share": share,
            }
            found.append({**head, **summarise(list(reports.values()), wall_s(records, run))})
    return describe("dataset", config, {"runs": found})


def print_result(result: dict[str, Any]) -> None:
    rows: list[Sequence[object]] = [
        ("tasks", "rows", "failed", "RTF", "first audio ms: mean", "p50", "p90", "p99", "whole: mean", "p50", "gaps")
    ]
    for run in result["metrics"]["runs"]:
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
    parser.add_argument("--wavs", action="store_true", help="write what was heard")
    parser.add_argument("--upstream-files", action="store_true", help="write rtf-NAME.txt, stats_summary-NAME.txt, model_config-NAME.json")
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
    manner = Manner(options.server, options.mode, options.text_rate, options.default_voice, options.speaker_id, options.security)
    runs = runs_of(options.num_tasks)
    with TemporaryDirectory() as recordings:
        rows = read_rows(options.dataset, options.split, Path(recordings), options.max_rows)
        model = MODELS[options.mode].name
        check_server(options.server, options.security, model, decoupled=options.mode != "offline")
        names = ("dataset", "split", "max_rows", "mode", "text_rate", "default_voice", "speaker_id")
        config = {**{name: getattr(options, name) for name in names}, "rows": len(rows)}
        with Records(options.out, config) as records:
            try:
                for run in runs:
                    measure(options, manner, rows, run, records)
            finally:
                result = result_of(config, records.all)
                (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print_result(result)
            sentences = [sentence for run in runs for sentence in failures(list(spoken(records.all, run).values()))]
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
        return fail(f"interrupted; the same command continues with what is in {options.out}", EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
