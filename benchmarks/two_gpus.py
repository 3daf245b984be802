"""Callers that two GPUs carry against one: a server per GPU behind Envoy, and a server with language model and speech on two GPUs.

    python benchmarks/two_gpus.py [--ways one per-gpu split] [--callers 128 256 384 512 576 640] [--model-dir DIR] [--out FILE]

Each way is served with a random checkpoint of full size (or DIR) and called by benchmarks/sessions.py: first by one caller with whole texts
(--single times), then by growing numbers of callers up to the first that is not carried, then by halves between the last two. A number is
carried when no session fails and none has a gap. The ways with two GPUs get twice as many callers, at twice the starts per second once
there are 256. Prints for each way the first audio alone and the callers carried; the last line is one JSON object. Needs two GPUs, and
Envoy (requirements/envoy.txt, or $ENVOY) for per-gpu; --size tiny shows on a CPU that it runs, and nothing else. Each way takes minutes:
give one at a time where commands are limited. Callers share the machine: see client_core_share of each run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, report, table
from benchmarks._server import START_TIMEOUT_S, Server, ServerPlan, call, make_repository
from bistream.keeper.server_process import free_ports

GPUS = 2
WAYS = ("one", "per-gpu", "split")


class Group(Server):
    """``scripts/serve_gpus.py`` with two servers, all of them ready."""

    def __init__(self, repository: Path, work: Path, environment: dict[str, str], name: str) -> None:
        super().__init__(repository, work, environment, name)
        ports = free_ports()
        self._command = [sys.executable, "scripts/serve_gpus.py", "--servers", str(GPUS), "--model-repository", str(repository)]
        self._command += ["--ready-file", str(self._ready), "--grpc-port", str(ports.grpc), "--http-port", str(ports.http)]
        self._command += ["--admin-port", str(ports.metrics), "--", "--start-timeout-s", str(START_TIMEOUT_S)]

    def __enter__(self) -> Group:
        super().__enter__()
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._servers() < GPUS:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise RuntimeError("Not all servers started; see the log in --work.")
            time.sleep(0.1)
        return self

    def _servers(self) -> int:
        try:
            return len(str(json.loads(self._ready.read_text(encoding="utf-8"))["servers"]).split(", "))
        except FileNotFoundError:  # no server takes sessions just now
            return 0


def environment_of(way: str) -> dict[str, str]:
    """One server sees one GPU, even where there are two."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "0"} if way == "one" else dict(os.environ)


def settings_of(way: str, has_gpus: bool) -> dict[str, str]:
    return {"device": "cuda:1", "llm_bistream.device": "cuda:0"} if way == "split" and has_gpus else {}


def is_carried(run: dict[str, Any]) -> bool:
    return bool(run["sessions_without_gap"] == run["sessions"])


def most_sessions(way: str, callers: Sequence[int]) -> int:
    """``max_sessions`` of a server: a quarter more than its callers, for an uneven spread; each takes 50 MB of the KV cache."""
    return math.ceil(1.25 * max(callers) * (GPUS if way == "split" else 1))


def most_carried(numbers: Sequence[int], resolution: int, carries: Callable[[int], bool]) -> tuple[int, int | None]:
    """The most callers that were carried (0: not the first number), and the fewest that were not (None: all were).

    The numbers are tried in order up to the first that is not carried, then the middle of the two, until they are ``resolution`` apart.
    """
    carried, too_many = 0, None
    for callers in sorted(numbers):
        if not carries(callers):
            too_many = callers
            break
        carried = callers
    while carried and too_many is not None and too_many - carried > resolution:
        middle = (carried + too_many) // 2
        carried, too_many = (middle, too_many) if carries(middle) else (carried, middle)
    return carried, too_many


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    work = options.work / way
    work.mkdir(parents=True, exist_ok=True)
    environment = environment_of(way)
    scale = 1 if way == "one" else GPUS
    plan = ServerPlan("auto", options.size, options.model_dir, (), most_sessions(way, options.callers))
    repository = make_repository(plan, work, environment, settings_of(way, torch.cuda.is_available()))
    kind = Group if way == "per-gpu" else Server
    runs: list[dict[str, Any]] = []
    with kind(repository, work, environment, "server") as server:
        call(server, 1, work, environment)  # the voice
        alone = call(server, 1, work, environment, options.single, text_rate=None)
        print(f"{way}: ready after {server.startup_s} s; alone: {alone['time_to_first_audio_ms']}", flush=True)

        def carries(callers: int) -> bool:
            runs.append({"callers": callers, **call(server, callers, work, environment)})
            print(f"{way}: {callers} callers: {runs[-1]['time_to_first_audio_ms']}, carried: {is_carried(runs[-1])}", flush=True)
            return is_carried(runs[-1])

        carried, too_many = most_carried([scale * number for number in options.callers], scale * options.resolution, carries)
    return {"way": way, "alone": alone, "carried": carried, "not_carried": too_many, "runs": runs, "startup_s": server.startup_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--callers", type=int, nargs="+", default=[128, 256, 384, 512, 576, 640], help="of one GPU (default %(default)s)")
    parser.add_argument("--resolution", type=int, default=16, help="callers of one GPU between carried and not (default %(default)s)")
    parser.add_argument("--single", type=int, default=30, help="calls of one caller alone (default %(default)s)")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--model-dir", type=Path, help="default: a random checkpoint")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "two_gpus", help="logs (default %(default)s)")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    if min(options.callers) < 1 or options.resolution < 1 or options.single < 1:
        parser.error("--callers, --resolution and --single must be 1 or more")
    if options.size == "full" and torch.cuda.device_count() < GPUS:
        parser.error(f"{torch.cuda.device_count()} GPUs are visible, {GPUS} are needed; --size tiny runs without")
    found = [measure(way, options) for way in options.ways]
    rows: list[list[object]] = [["way", "first audio alone p50, p99 ms", "callers carried", "not carried"]]
    for one in found:
        alone = one["alone"]["time_to_first_audio_ms"]
        rows.append([one["way"], f"{alone['p50']}, {alone['p99']}", one["carried"], one["not_carried"] or "never seen"])
    table(rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report("two_gpus", device, {"size": options.size, "callers": options.callers}, {"ways": found}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
