"""How the numbers of a model's process reach the keeper: once a second, as one file in the server's control folder.

Triton's own custom metrics were measured for this: an update is a round trip of 27 to 40 us (25 us of CPU in model and server together),
a histogram takes one per observation, and counters named ``x_bucket`` are not read as a histogram (docs/log/server.md). A
file costs the same whatever was counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bistream.control_files import CONTROL_VARIABLE
from bistream.metrics.families import PROCESS_CPU, PROCESS_MEMORY, THREADS
from bistream.metrics.recorder import Recorder
from bistream.metrics.snapshot import Snapshot, from_json, to_json

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
_SUFFIX = ".metrics"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Exporter:
    """Writes the snapshots of one process. ``write`` is called by its own thread, or by a test."""

    def __init__(self, directory: Path, model_name: str, recorder: Recorder, interval_s: float = INTERVAL_S) -> None:
        self._path = directory / f"{model_name}-{os.getpid()}{_SUFFIX}"
        self._recorder = recorder
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False
        recorder.read(THREADS, lambda: {(model_name,): threading.active_count()})
        recorder.read(PROCESS_CPU, lambda: {(model_name,): time.process_time()})
        recorder.read(PROCESS_MEMORY, lambda: {(model_name,): _resident_bytes()})

    def start(self) -> None:
        self.write()  # all series exist before the model is ready
        self._thread = threading.Thread(target=self._write_on, name="bistream-metrics", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Atomic: a reader sees the last snapshot or this one. A failure is logged once."""
        new = self._path.with_suffix(".new-metrics")
        try:
            new.write_text(to_json(self._recorder.snapshot()), encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            if not self._has_failed:
                logger.warning("the metrics could not be written: %s", error)
            self._has_failed = True

    def stop(self) -> None:
        """Write once more, then stop. Idempotent."""
        if self._thread is not None and not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self.write()

    def _write_on(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.write()


def export_to_keeper(model_name: str, recorder: Recorder) -> Callable[[], None]:
    """Start writing; returns what stops it. Does nothing if the server runs without a keeper."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if not directory:
        return lambda: None
    exporter = Exporter(Path(directory), model_name, recorder)
    exporter.start()
    return exporter.stop


@dataclass(frozen=True)
class Report:
    """The last snapshot of one process. age_s: since it was written. is_alive: whether the process still exists."""

    model_name: str
    snapshot: Snapshot
    age_s: float
    is_alive: bool


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def read_reports(directory: Path, is_alive: Callable[[int], bool] = _exists, now: Callable[[], float] = time.time) -> list[Report]:
    """Of all processes of a server; files that disappear meanwhile are left out."""
    reports = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        model_name, _, pid = path.stem.rpartition("-")
        with contextlib.suppress(OSError, ValueError):
            snapshot = from_json(path.read_text(encoding="utf-8"))
            reports.append(Report(model_name, snapshot, max(0.0, now() - path.stat().st_mtime), is_alive(int(pid))))
    return reports


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * _PAGE_BYTES
