"""A server of a random or given checkpoint on free ports, for ``first_audio_rounds.py``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks._common import ROOT, gpu_line
from bistream.families.cosyvoice2 import COSYVOICE2

START_TIMEOUT_S, EXIT_TIMEOUT_S = 900.0, 60.0
SPEAKER = "anna"
# All callers have one address, which the gate would bound.
LIMITS = ("sessions-per-address", "streams-per-address", "starts-per-second")
MANY_CALLERS = tuple(word for limit in LIMITS for word in (f"--{limit}", "0"))


@dataclass(frozen=True)
class Checkpoint:
    """given: a model directory; None: random weights of this family and size, made once under ``work``."""

    family: str
    size: str
    given: Path | None
    work: Path

    @property
    def path(self) -> Path:
        names = [self.size] if self.family == COSYVOICE2.name else [self.family, self.size]
        return self.given or self.work.parent / "-".join(["checkpoint", *names])


def run(command: list[str], log: Path, environment: Mapping[str, str]) -> str:
    """Output of a command. Raises ``RuntimeError`` with the end of its log when it fails."""
    with log.open("w") as stream:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, check=False)
    if done.returncode:
        said = (done.stdout + log.read_text()).splitlines()[-15:]
        raise RuntimeError("\n".join([f"{' '.join(command)} ended with {done.returncode}:", *said]))
    return done.stdout


class Server:
    """``scripts/serve.py`` on free ports, with its gate, for a ``with`` statement. startup_s: time until it accepts sessions."""

    def __init__(self, repository: Path, work: Path, environment: Mapping[str, str], name: str, more: Sequence[str] = ()) -> None:
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
        for _ in range(2):  # a second signal ends everything at once
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(EXIT_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    continue


def register_voice(model_dir: Path, voices_dir: Path, environment: Mapping[str, str]) -> None:
    """The recording of ``assets``, under the name ``SPEAKER``; computed on the CPU."""
    text = (ROOT / "assets" / "reference.txt").read_text(encoding="utf-8").strip()
    command = [sys.executable, "-m", "bistream", "voices", "add", SPEAKER, "--model-dir", str(model_dir), "--voices-dir", str(voices_dir)]
    command += ["--reference-audio", "assets/reference.wav", "--reference-text", text]
    run(command, voices_dir.parent / "voice.log", {**environment, "CUDA_VISIBLE_DEVICES": ""})


def make_repository(checkpoint: Checkpoint, environment: Mapping[str, str], settings: Mapping[str, str] = MappingProxyType({})) -> Path:
    """settings: as for ``make_model_repo.py --set``."""
    work = checkpoint.work
    if not checkpoint.path.exists():
        device = "cuda" if gpu_line("name") else "cpu"
        command = [sys.executable, "scripts/make_checkpoint.py", "--family", checkpoint.family, "--size", checkpoint.size]
        run([*command, "--device", device, str(checkpoint.path)], work / "checkpoint.log", environment)
    command = [sys.executable, "scripts/make_model_repo.py", "--model-dir", str(checkpoint.path), "--out", str(work / "model_repo")]
    for key, value in {**({"num_threads": "1"} if checkpoint.size == "tiny" else {}), **settings}.items():
        command += ["--set", f"{key}={value}"]
    run(command, work / "repository.log", environment)
    return work / "model_repo"
