"""The files through which the keeper and the front doors of a server coordinate the end of sessions, in a directory that both can access.

    drain               written by the keeper: the seconds that running sessions may still take
    failed              written by the keeper before a restart: the model whose process has failed ("-": none in particular), and
                        the seconds that sessions which do not need it may still take
    <model>-<pid>.door  written by every front door: ``serving``, then ``draining N`` (sessions left), then ``drained``
    <model>-<pid>.metrics  written by every model once a second (``metrics/exporter.py``)

Files instead of a request, because a request reaches one instance of a model rather than all, queues behind the session that an offline
instance is serving, and could come from any client; the directory is accessible to the server's own user only. Read and
written by ``keeper/drain.py`` and ``triton/front_door.py``; functions raise ``OSError`` where a file cannot be read or written.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

CONTROL_VARIABLE = "BISTREAM_CONTROL"  # environment of the models: the directory; unset: the server has no keeper
SERVING, DRAINING, DRAINED = "serving", "draining", "drained"
_DRAIN = "drain"
_FAILED, _NO_MODEL = "failed", "-"
_DOOR = ".door"


def write_drain(directory: Path, timeout_s: float) -> None:
    """Ask all front doors to drain."""
    _write(directory / _DRAIN, str(timeout_s))


def read_drain(directory: Path) -> float | None:
    """Seconds that running sessions may take; ``None`` while no drain is requested."""
    with contextlib.suppress(FileNotFoundError):
        return float((directory / _DRAIN).read_text(encoding="utf-8"))
    return None


def write_failure(directory: Path, model: str, patience_s: float) -> None:
    """Tell all front doors that the server is restarted because of ``model`` ("": of none in particular)."""
    _write(directory / _FAILED, f"{model or _NO_MODEL} {patience_s}")


def read_failure(directory: Path) -> tuple[str, float] | None:
    """(model, seconds) of ``write_failure``; ``None`` while nothing has failed."""
    with contextlib.suppress(FileNotFoundError):
        model, patience_s = (directory / _FAILED).read_text(encoding="utf-8").split()
        return "" if model == _NO_MODEL else model, float(patience_s)
    return None


def forget_process(directory: Path, pid: int) -> None:
    """Remove what a dead model process has reported."""
    for path in directory.glob(f"*-{pid}.*"):
        path.unlink(missing_ok=True)


def write_status(directory: Path, door: str, status: str) -> None:
    """status: ``SERVING``, ``DRAINING`` and the number of sessions left, or ``DRAINED``."""
    _write(directory / f"{door}{_DOOR}", status)


def read_statuses(directory: Path) -> list[str]:
    """The latest status of every front door."""
    return [path.read_text(encoding="utf-8") for path in directory.glob(f"*{_DOOR}")]


def _write(path: Path, text: str) -> None:
    """Atomic: a reader sees the old or the new content."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
