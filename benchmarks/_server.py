"""Starts a server twice, on random weights, and measures it under load, for ``benchmarks/measure.py``."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bistream.family import COSYVOICE2

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S, EXIT_TIMEOUT_S = 900.0, 60.0
SPEAKER = "anna"
TEXT, TEXT_RATE = "The quick brown fox jumps over", 10.0
# All callers have one address, which the gate would bound.
LIMITS = ("sessions-per-address", "streams-per-address", "starts-per-second")
MANY_CALLERS = tuple(word for limit in LIMITS for word in (f"--{limit}", "0"))  # all have one address
STARTS_PER_S, LONGEST_SPREAD_S = 16.0, 16.0  # of callers


@dataclass(frozen=True)
class ServerPlan:
    """model_dir None: a random checkpoint of this size and family. callers: how many in each run at the pace of text that is being written.

    closed: how many in each run of callers that send ``closed_requests`` whole texts one after another, with a voice that the server knows.
    """

    kernels: str
    size: str
    model_dir: Path | None
    callers: tuple[int, ...]
    max_sessions: int
    family: str = COSYVOICE2.name
    closed: tuple[int, ...] = ()
    closed_requests: int = 10


def gpu_line(field: str) -> str | None:
    """A field that ``nvidia-smi`` reports for the first GPU; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def gpu_memory_gb() -> float | None:
    """Memory in use on the first GPU, by all processes."""
    used = gpu_line("memory.used")
    return None if used is None else round(float(used) * 2**20 / 1e9, 2)


def run(command: list[str], log: Path, environment: dict[str, str]) -> str:
    """Output of a command. Raises ``RuntimeError`` with the end of its log when it fails."""
    with log.open("w") as stream:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, check=False)
    if done.returncode:
        said = (done.stdout + log.read_text()).splitlines()[-15:]
        raise RuntimeError("\n".join([f"{' '.join(command)} ended with {done.returncode}:", *said]))
    return done.stdout


class Server:
    """``scripts/serve.py`` on free ports, with its gate, for a ``with`` statement. startup_s: time until it accepts sessions."""

    def __init__(self, repository: Path, work: Path, environment: dict[str, str], name: str, more: Sequence[str] = ()) -> None:
        """more: options of ``scripts/serve.py``."""
        self._ready, self._log = work / f"{name}.ready", work / f"{name}.log"
        self._ready.unlink(missing_ok=True)
        self._command = [sys.executable, "scripts/serve.py", "--model-repository", str(repository), "--free-ports", "--log-file", "-"]
        self._command += ["--ready-file", str(self._ready), "--start-timeout-s", str(START_TIMEOUT_S), *MANY_CALLERS, *more]
        self._environment = environment
        self.grpc, self.startup_s = "", 0.0

    def __enter__(self) -> Server:
        began = time.monotonic()
        with self._log.open("w") as stream:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
        while not (text := self._ready.read_text() if self._ready.exists() else ""):
            if self._process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                self._end()
                raise RuntimeError("\n".join(["The server did not start:", *self._log.read_text().splitlines()[-15:]]))
            time.sleep(0.05)
        self.grpc, self.startup_s = json.loads(text)["grpc"], round(time.monotonic() - began, 1)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        """Drain and stop, which takes seconds when no session is running."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGTERM)  # the second signal ends everything at once
                self._process.wait(EXIT_TIMEOUT_S)


def model_dir_of(plan: ServerPlan, work: Path) -> Path:
    names = [plan.size] if plan.family == COSYVOICE2.name else [plan.family, plan.size]
    return plan.model_dir or work.parent / "-".join(["checkpoint", *names])


def register_voice(model_dir: Path, voices_dir: Path, environment: Mapping[str, str]) -> None:
    """The recording of ``assets``, under the name ``SPEAKER``; computed on the CPU."""
    text = (ROOT / "assets" / "reference.txt").read_text(encoding="utf-8").strip()
    command = [sys.executable, "-m", "bistream", "voices", "add", SPEAKER, "--model-dir", str(model_dir), "--voices-dir", str(voices_dir)]
    command += ["--reference-audio", "assets/reference.wav", "--reference-text", text]
    run(command, voices_dir.parent / "voice.log", {**environment, "CUDA_VISIBLE_DEVICES": ""})


def make_repository(plan: ServerPlan, work: Path, environment: dict[str, str], more: Mapping[str, str] = MappingProxyType({})) -> Path:
    """more: settings, as for ``make_model_repo.py --set``."""
    model_dir = model_dir_of(plan, work)
    if not model_dir.exists():
        device = "cuda" if gpu_line("name") else "cpu"
        command = [sys.executable, "scripts/make_checkpoint.py", "--family", plan.family, "--size", plan.size, "--device", device]
        command.append(str(model_dir))
        run(command, work / "checkpoint.log", environment)
    repository = work / "model_repo"
    command = [sys.executable, "scripts/make_model_repo.py", "--model-dir", str(model_dir), "--out", str(repository)]
    settings = {"max_sessions": str(plan.max_sessions), "kernels": plan.kernels, **more}
    if plan.size == "tiny":
        settings["num_threads"] = "1"
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    run(command, work / "repository.log", environment)
    return repository


def call(
    server: Server,
    callers: int,
    work: Path,
    environment: dict[str, str],
    requests: int = 1,
    text_rate: float | None = TEXT_RATE,
    *,
    is_closed: bool = False,
) -> dict[str, Any]:
    """The summary of ``benchmarks/sessions.py`` for this many concurrent callers.

    text_rate: words per second; None: the text is whole. is_closed: as in ``ServerPlan.closed``, the text is whole, too.
    """
    spread_s = 0.0 if callers == 1 or is_closed else min(LONGEST_SPREAD_S, callers / STARTS_PER_S)
    command = [sys.executable, "benchmarks/sessions.py", "--server", server.grpc, "--num-tasks", str(callers), "--spread-s", str(spread_s)]
    command += ["--requests", str(requests), "--reference-audio", "assets/reference.wav", "--text", TEXT]
    command += ["--voice-hash"] if is_closed else []
    command += [] if is_closed or text_rate is None else ["--text-rate", str(text_rate)]
    command += ["--reference-text", (ROOT / "assets" / "reference.txt").read_text(encoding="utf-8").strip()]
    with (work / f"callers-{callers}.log").open("w") as stream:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, check=False)
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):  # exit code 1 can mean that a session failed, which is a result
        raise RuntimeError(f"{callers} callers: the benchmark ended with {done.returncode} and printed no result; see {stream.name}")
    summary: dict[str, Any] = json.loads(lines[-1])
    return {"load": "closed" if is_closed else "real time", **summary, "audio_s_per_s": round(summary["audio_s"] / summary["wall_s"], 1)}


def measure_server(plan: ServerPlan, work: Path, environment: dict[str, str]) -> dict[str, Any]:
    """name, command, config and metrics of a result. The first call, which prepares the voice, does not count."""
    repository = make_repository(plan, work, environment)
    before = gpu_memory_gb()
    with Server(repository, work, environment, "server-cold") as server:
        cold = server.startup_s
        print(f"cold start {cold} s", flush=True)
        call(server, 1, work, environment)
        loads = [*((callers, True) for callers in plan.closed), *((callers, False) for callers in plan.callers)]
        runs = []
        for callers, is_closed in loads:
            runs.append(call(server, callers, work, environment, plan.closed_requests if is_closed else 1, is_closed=is_closed))
            print(f"{callers} callers, {runs[-1]['load']}: {runs[-1]['time_to_first_audio_ms']}", flush=True)
        after = gpu_memory_gb()
    with Server(repository, work, environment, "server-warm") as server:
        warm = server.startup_s
    metrics: dict[str, Any] = {"runs": runs, "startup_s": {"cold": cold, "warm": warm}}
    if before is not None and after is not None:
        metrics["gpu_memory_gb"] = round(after - before, 2)
    settings = {"kernels": plan.kernels, "family": plan.family, "max_sessions": plan.max_sessions, "checkpoint": f"{plan.size}, random"}
    if plan.model_dir is not None:
        settings["checkpoint"] = plan.model_dir.name
    return {"name": "sessions", "config": {**settings, "text": TEXT, "text_rate": TEXT_RATE}, "metrics": metrics}
