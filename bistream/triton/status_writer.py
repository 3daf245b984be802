"""Writes the status of this model process for the keeper (``control_files``): signs of life, sessions left to a drain, fresh gauges.

One thread writes a new beat four times a second. It does nothing else, so that a beat is missing only when the process is stopped, or
some thread holds the interpreter's lock for ever. Code that may hold it for more than a few seconds says so first::

    with status.busy(300.0, "compiling the kernels"):
        ...

Another thread reads the gauges once a second: it waits for locks of the stages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bistream.metrics.recorder import Recorder
from bistream.processes.control_files import CONTROL_VARIABLE, ProcessStatus, StatusFile

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.25
GAUGE_INTERVAL_S = 1.0
LONGEST_REASON = 100  # characters: a status has room for it however it is escaped


class StatusWriter:
    """file: ``None``: nobody reads it. ``start``, then any method from any thread, then ``stop`` (idempotent)."""

    def __init__(self, file: StatusFile | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._status = ProcessStatus()
        self._busy: dict[object, tuple[float, str]] = {}
        self._stopped = threading.Event()
        self._recorder: Recorder | None = None
        self.beat()

    @classmethod
    def of_this_process(cls, model: str) -> StatusWriter:
        """A process that cannot write its status is not watched for hangs, and goes on."""
        directory = os.environ.get(CONTROL_VARIABLE)
        file = None
        if directory:
            try:
                file = StatusFile(Path(directory), model, os.getpid())
            except OSError as error:
                logger.warning("this process is not watched for hangs: %s", error)
        writer = cls(file)
        writer._repeat("bistream-status", BEAT_INTERVAL_S, writer.beat)
        return writer

    def beat(self) -> None:
        self._update(beats=self._status.beats + 1)

    @contextlib.contextmanager
    def busy(self, seconds: float, reason: str) -> Iterator[None]:
        """Silence of up to ``seconds`` may follow at any time within."""
        token = object()
        with self._lock:
            self._busy[token] = (seconds, reason[:LONGEST_REASON])
        self.beat()
        try:
            yield
        finally:
            with self._lock:
                del self._busy[token]
            self.beat()

    def report_sessions(self, sessions: int, is_drained: bool = False) -> None:
        """Of a front model: those left to a drain."""
        if (self._status.sessions, self._status.is_drained) != (sessions, is_drained):
            self._update(sessions=sessions, is_drained=is_drained)

    def record(self, recorder: Recorder, model: str) -> None:
        """Keep the gauges of ``recorder`` fresh from now on; they exist when this returns."""
        recorder.read_process(model)
        self._recorder = recorder
        self.refresh()
        self._repeat("bistream-gauges", GAUGE_INTERVAL_S, self.refresh)

    def refresh(self) -> None:
        if self._recorder is not None:
            self._recorder.refresh()
            self._update(counted_at=time.monotonic())

    def stop(self) -> None:
        self._stopped.set()

    def _update(self, **changes: Any) -> None:
        with self._lock:
            busy_s, reason = max(self._busy.values(), default=(0.0, ""))
            self._status = replace(self._status, busy_s=busy_s, reason=reason, **changes)
            if self._file is not None:
                self._file.write(self._status)

    def _repeat(self, name: str, interval_s: float, work: Callable[[], None]) -> None:
        def run() -> None:
            while not self._stopped.wait(interval_s):
                work()

        if self._file is not None:
            threading.Thread(target=run, name=name, daemon=True).start()
