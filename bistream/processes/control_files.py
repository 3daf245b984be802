"""The files in one folder through which the keeper and the model processes of its server coordinate; both sides use this module.

    <model>-<pid>.status  written by a model process several times a second: its ``ProcessStatus``
    order                 written by the keeper, once sessions must end: its ``Order``
    *.db                  written by the models' ``prometheus_client``, read by the keeper (``keeper/metrics.py``)

Files instead of requests: a request reaches one instance of a model rather than all, queues behind the session that an offline instance
is serving, could come from any client, and is not answered by a process that hangs. Only the server's own user can access the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bistream.processes.whole_file import write_whole

CONTROL_VARIABLE = "BISTREAM_CONTROL"  # environment of the models: the folder; unset: the server has no keeper
LONGEST_STOP_S = 12.0  # any process may stand still for so long, and its sessions go on afterwards: every time-out here is longer
_STATUS, _ORDER = ".status", "order"
READ_ATTEMPTS = 3
_STATUS_BYTES = 512  # always written as a whole, so that a reader sees one status or another


@dataclass(frozen=True)
class ProcessStatus:
    """What a model process says of itself.

    beats: grows while its Python code runs. busy_s: for how long after this beat silence must be expected, because of ``reason``.
    sessions: of a front model, those left to a drain; ``None``: it takes no sessions. is_drained: they have ended, and no new one begins.
    counted_at: ``time.monotonic()`` (of the whole host) when its gauges were last read.
    """

    beats: int = 0
    busy_s: float = 0.0
    reason: str = ""
    sessions: int | None = None
    is_drained: bool = False
    counted_at: float = 0.0


@dataclass(frozen=True)
class Order:
    """End the sessions: after ``patience_s`` at most, and those that need the model ``failed`` at once, with an error.

    failed: ``None``: a drain, in which sessions may end by themselves; "": the server is restarted, but no model is lost yet.
    """

    patience_s: float
    failed: str | None = None


class StatusFile:
    """Of this process. Raises ``OSError`` when it cannot be made.

    It is overwritten in place: making another one to replace it would need memory that a full ``/dev/shm`` does not have, and a process
    whose status stands still is killed.
    """

    def __init__(self, directory: Path, model: str, pid: int) -> None:
        self._file = os.open(directory / f"{model}-{pid}{_STATUS}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, status: ProcessStatus) -> None:
        """A status that cannot be written is lost; the next one follows soon."""
        record = json.dumps(asdict(status)).ljust(_STATUS_BYTES)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, record.encode("ascii"), 0)

    def close(self) -> None:
        os.close(self._file)


def read_status(directory: Path, model: str, pid: int) -> ProcessStatus | None:
    """The latest status of a process; ``None`` if there is none."""
    return _read(directory / f"{model}-{pid}{_STATUS}")


def read_statuses(directory: Path) -> list[tuple[str, ProcessStatus]]:
    """(model, status) of every process."""
    found = ((path.stem.rpartition("-")[0], _read(path)) for path in directory.glob(f"*{_STATUS}"))
    return [(model, status) for model, status in found if status is not None]


def _read(path: Path) -> ProcessStatus | None:
    for _ in range(READ_ATTEMPTS):
        try:
            return ProcessStatus(**json.loads(path.read_text(encoding="ascii")))
        except OSError:
            return None
        except (ValueError, TypeError):  # it was being written
            continue
    return None


def forget_process(directory: Path, model: str, pid: int) -> None:
    """Remove the status and the gauges of a dead process; its counters remain."""
    (directory / f"{model}-{pid}{_STATUS}").unlink(missing_ok=True)
    for path in directory.glob(f"gauge_*_{pid}.db"):
        path.unlink(missing_ok=True)


def write_order(directory: Path, order: Order) -> None:
    """Atomic: a reader sees this order or the one before it. Raises ``OSError``."""
    write_whole(directory / _ORDER, json.dumps(asdict(order)).encode("ascii"))


def read_order(directory: Path) -> Order | None:
    """``None`` while sessions may go on."""
    try:
        return Order(**json.loads((directory / _ORDER).read_text(encoding="ascii")))
    except FileNotFoundError:
        return None
