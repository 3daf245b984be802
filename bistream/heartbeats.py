"""Signs of life of the model processes, in files that the keeper reads: ``<model>-<pid>.beat`` in the directory of ``control_files``.

A thread of the process's own Python writes a new count four times a second. So the count stands still when the process is stopped, and
also when some thread holds the interpreter's lock for ever. Code that may hold it for more than a few seconds says so first::

    with heartbeats.busy(300.0, "compiling the kernels"):
        ...

A file, because it stays readable when its writer no longer works, and because a write into shared memory costs microseconds. Written by
``triton/model.py``, read by ``keeper/hang_watch.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.25
LONGEST_STOP_S = 12.0  # any process may stand still for so long, and its sessions go on afterwards: every time-out here is longer
_SUFFIX = ".beat"
_RECORD_BYTES = 160  # always written as a whole, so that a reader sees one record or another


@dataclass(frozen=True)
class Beat:
    """count: grows with every beat. busy_s: for how long after this beat silence must be expected, because of ``reason``."""

    count: int
    busy_s: float = 0.0
    reason: str = ""


def read_beat(directory: Path, model: str, pid: int) -> Beat | None:
    """The latest beat of a process; ``None`` if it writes none."""
    try:
        count, busy_s, reason = (directory / f"{model}-{pid}{_SUFFIX}").read_text(encoding="utf-8").split(maxsplit=2)
        return Beat(int(count), float(busy_s), reason.strip())
    except (OSError, ValueError):
        return None


class Heartbeat:
    """Of this process. Raises ``OSError`` when its file cannot be made. ``beat`` is called by its own thread, or by a test."""

    def __init__(self, directory: Path, model: str, pid: int) -> None:
        self._file = os.open(directory / f"{model}-{pid}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._count = 0
        self._busy: dict[object, tuple[float, str]] = {}
        self._stopped = threading.Event()
        self.beat()

    def start(self) -> None:
        threading.Thread(target=self._beat_on, name="bistream-heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def beat(self) -> None:
        with self._lock:
            self._count += 1
            busy_s, reason = max(self._busy.values(), default=(0.0, "-"))
            record = f"{self._count} {busy_s:.1f} {reason}"[: _RECORD_BYTES - 1].ljust(_RECORD_BYTES - 1) + "\n"
            with contextlib.suppress(OSError):
                os.pwrite(self._file, record.encode("ascii", "replace"), 0)

    @contextlib.contextmanager
    def busy(self, seconds: float, reason: str) -> Iterator[None]:
        """Silence of up to ``seconds`` may follow at any time within."""
        token = object()
        with self._lock:
            self._busy[token] = (seconds, reason)
        self.beat()
        try:
            yield
        finally:
            with self._lock:
                del self._busy[token]
            self.beat()

    def _beat_on(self) -> None:
        while not self._stopped.wait(BEAT_INTERVAL_S):
            self.beat()


_own: Heartbeat | None = None  # of this process


def begin(directory: Path, model: str) -> None:
    """Let this process beat until it ends. A process that cannot is not watched for hangs."""
    global _own
    try:
        _own = Heartbeat(directory, model, os.getpid())
    except OSError as error:
        logger.warning("this process is not watched for hangs: %s", error)
        return
    _own.start()


@contextlib.contextmanager
def busy(seconds: float, reason: str) -> Iterator[None]:
    """``Heartbeat.busy`` of this process; has no effect in one that does not beat."""
    with contextlib.nullcontext() if _own is None else _own.busy(seconds, reason):
        yield
