"""What everything but the networks costs: the real server, whose networks only take their time (see ``_timed_networks``). No GPU.

    python benchmarks/orchestration.py [--sessions 64 256 512] [--seconds 20] [--closed 8 64 96 256] [--out FILE]

For each number of sessions that speak in real time, one more caller has whole short texts spoken, one after another. Printed: its first
audio beyond the time of the networks alone, cores in use by every process, threads. A process that comes near one core is a
bottleneck, as Python computes on one. Callers run in processes of their own on the same machine: on few cores they are part of what
is measured.

--closed: so many callers have whole short texts spoken, each one after another, as fast as they can. Printed: first audio for the
client and for the orchestrator (from the accepted request on), and CPU milliseconds per audio second of every process, which other work
on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report, table
from benchmarks._server import ROOT, Server, ServerPlan, make_repository
from benchmarks._timed_networks import HOP_S, HOP_S_PER_TOKEN, STEP_S, STEP_S_PER_ROW

STAND_INS = {
    "llm_bistream": ("from bistream.text2token.service import SpeechTokenService", "TimedSpeechTokenService as SpeechTokenService"),
    "token2wav": ("from bistream.token2wav.service import Token2Wav\n", "TimedToken2Wav as Token2Wav\n"),
}
FIRST_HOP_TOKENS, LOOKAHEAD_TOKENS = 15, 3
SPEECH_TEXT = "one two three four five six seven eight nine ten"
SPEECH_TEXT_RATE = 0.4  # words per second, about one second of audio per second at 20 speech tokens per text token
PROBE_TEXT = "Hello you"
PROBE_REQUESTS = 30
NOT_SPEECH = ("--no-golden", "--probe-interval-s", "0")  # the stand-ins make silence, which is no golden utterance
CLOSED_SESSIONS, CLOSED_REQUESTS = 256, 2  # least: in all, and of each caller
PROCESS_NAMES = re.compile(r"triton_python_backend_stub \S*/(\w+)/1/model.py|(tritonserver) |-m (gateway) |benchmarks/_(callers)\.py")


@dataclass(frozen=True)
class Usage:
    """cpu_s: user and system time so far, by name of the process. threads: now."""

    cpu_s: dict[str, float]
    threads: dict[str, int]


def ideal_first_audio_s() -> float:
    """Time of the networks for the first audio of a session alone: steps of the first hop's tokens, then the hop."""
    steps = FIRST_HOP_TOKENS + LOOKAHEAD_TOKENS
    return steps * (STEP_S + STEP_S_PER_ROW) + HOP_S + HOP_S_PER_TOKEN * steps


def replace_networks(repository: Path) -> None:
    for model, (line, replacement) in STAND_INS.items():
        path = repository / model / "1" / "model.py"
        text = path.read_text(encoding="utf-8")
        assert text.count(line) == 1, f"{path} no longer contains {line!r}"
        path.write_text(text.replace(line, f"from benchmarks._timed_networks import {replacement}"), encoding="utf-8")


def usage() -> Usage:
    """Of all processes of the server and its callers, summed by name. Those are descendants of this one."""
    stats: dict[int, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stats[int(process.name)] = (process / "stat").read_text().rsplit(")", 1)[1].split()
    cpu_s: dict[str, float] = {}
    threads: dict[str, int] = {}
    for pid, fields in stats.items():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            match = PROCESS_NAMES.search(command)
            if match is None or not _is_ours(pid, stats):
                continue
            name = next(group for group in match.groups() if group)
            cpu_s[name] = cpu_s.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            threads[name] = threads.get(name, 0) + int(fields[17])
    return Usage(cpu_s, threads)


def _is_ours(pid: int, stats: dict[int, list[str]]) -> bool:
    while pid in stats and pid != os.getpid():
        pid = int(stats[pid][1])
    return pid == os.getpid()


def callers(server: str, number: int, requests: int, text: str, *rate: str) -> list[str]:
    command = [sys.executable, "benchmarks/sessions.py", "--server", server, "--num-tasks", str(number), "--requests", str(requests)]
    command += ["--reference-audio", "assets/reference.wav", "--reference-text", "hello", "--text", text]
    return [*command, *rate]


@contextlib.contextmanager
def speaking(server: str, sessions: int, environment: dict[str, str]) -> Iterator[None]:
    """This many sessions that speak in real time, one after another, until the end of the block."""
    if sessions == 0:
        yield
        return
    rate = ("--text-rate", str(SPEECH_TEXT_RATE), "--spread-s", "5")
    process = subprocess.Popen(
        callers(server, sessions, 1000, SPEECH_TEXT, *rate), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def probe(server: str, environment: dict[str, str]) -> dict[str, Any]:
    """Summary of one caller's whole short texts, one after another."""
    command = callers(server, 1, PROBE_REQUESTS, PROBE_TEXT)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def measure(server: str, sessions: int, seconds: float, environment: dict[str, str]) -> dict[str, Any]:
    with speaking(server, sessions, environment):
        time.sleep(10.0 if sessions else 0.0)  # the sessions' starts, and their first seconds
        first = probe(server, environment)["time_to_first_audio_ms"]
        before, began = usage(), time.monotonic()
        time.sleep(seconds if sessions else 0.0)
        after, took = usage(), time.monotonic() - began
    ideal = 1000 * ideal_first_audio_s()
    added = {level: round(value - ideal, 1) for level, value in first.items()}
    cores = {name: round((after.cpu_s[name] - cpu) / took, 3) for name, cpu in before.cpu_s.items() if name in after.cpu_s}
    return {"sessions": sessions, "added_ms": added, "cores": cores if sessions else {}, "threads": after.threads}


def measure_closed(server: str, log: Path, callers_: int, environment: dict[str, str]) -> dict[str, Any]:
    """Sessions as fast as they come: first audio in ms, CPU milliseconds per audio second, most threads."""
    requests = max(CLOSED_REQUESTS, CLOSED_SESSIONS // callers_)
    begin, before = log.stat().st_size, usage()
    process = subprocess.Popen(
        callers(server, callers_, requests, PROBE_TEXT),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    threads: dict[str, int] = {}
    while True:
        try:
            output, _ = process.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            threads = {name: max(count, threads.get(name, 0)) for name, count in usage().threads.items()}
    after, summary = usage(), json.loads(output.splitlines()[-1])
    ended = (json.loads(line) for line in log.read_text(encoding="utf-8")[begin:].splitlines() if '"event": "session_end"' in line)
    inside = [1000 * line["first_audio_s"] for line in ended if line["first_audio_s"] is not None]
    cpu_s = {name: after.cpu_s[name] - spent for name, spent in before.cpu_s.items() if name in after.cpu_s}
    return {
        "callers": callers_,
        "sessions": summary["sessions"],
        "failed": summary["failed"],
        "client_ms": summary["time_to_first_audio_ms"],
        "orchestrator_ms": percentiles(inside, 50, 99),
        "audio_s_per_s": round(summary["audio_s"] / summary["wall_s"], 1),
        "cpu_ms_per_audio_s": {name: round(1000 * spent / summary["audio_s"], 2) for name, spent in cpu_s.items()},
        "threads": threads,
    }


def closed_rows(runs: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    names = sorted({name for run in runs for name in run["cpu_ms_per_audio_s"]})
    header = (
        "callers",
        "failed",
        "client ms p50",
        "p99",
        "orchestrator ms p50",
        "p99",
        "audio s/s",
        *(f"{name}, CPU ms" for name in names),
    )
    return [
        (*header, "threads", "of the server"),
        *(
            (run["callers"], run["failed"], run["client_ms"].get("p50"), run["client_ms"].get("p99"), run["orchestrator_ms"]["p50"],
             run["orchestrator_ms"]["p99"], run["audio_s_per_s"], *(run["cpu_ms_per_audio_s"].get(name, "") for name in names),
             run["threads"].get("cosyvoice2_bistream", 0), run["threads"].get("tritonserver", 0))
            for run in runs
        ),
    ]  # fmt: skip


def rows(runs: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    names = sorted({name for run in runs for name in run["cores"]})
    header: tuple[object, ...] = ("sessions", "first audio + ms p50", "p99", *(f"{name}, cores" for name in names), "threads")
    return [
        header,
        *(
            (run["sessions"], run["added_ms"].get("p50"), run["added_ms"].get("p99"), *(run["cores"].get(name, "") for name in names),
             run["threads"].get("cosyvoice2_bistream", 0))
            for run in runs
        ),
    ]  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="*", default=[64, 256, 512], help="that speak in real time (default 64 256 512)")
    parser.add_argument("--seconds", type=float, default=20.0, help="over which CPU time is measured (default %(default)s)")
    parser.add_argument("--closed", type=int, nargs="*", default=[], help="callers without a pause")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "orchestration", help="logs, checkpoint, repository")
    parser.add_argument("--out", help="also write the result to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    plan = ServerPlan("plain", "tiny", None, (), max([0, *options.sessions, *options.closed]) + 8)
    repository = make_repository(plan, work, environment)
    replace_networks(repository)
    runs = []
    with Server(repository, work, environment, "server", NOT_SPEECH) as server:
        probe(server.grpc, environment)  # prepares the voice
        for sessions in (0, *options.sessions):
            runs.append(measure(server.grpc, sessions, options.seconds, environment))
            print(json.dumps(runs[-1]), flush=True)
        closed = []
        for number in options.closed:
            closed.append(measure_closed(server.grpc, work / "server.log", number, environment))
            print(json.dumps(closed[-1]), flush=True)
    table(rows(runs))
    if closed:
        table(closed_rows(closed))
    config = {"ideal_first_audio_ms": round(1000 * ideal_first_audio_s(), 2), "text_rate": SPEECH_TEXT_RATE, "text": SPEECH_TEXT}
    report("orchestration", torch.device("cpu"), config, {"runs": runs, "closed": closed}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
