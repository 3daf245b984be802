"""How the keeper of a server has its front doors drain: a directory that both can see, named in the environment of the models.

    drain               written by the keeper: the seconds that running sessions may still take
    <model>-<pid>.door  written by every front door: ``serving``, then ``draining N`` (sessions left), then ``drained``

Files and not a request, because a request reaches one instance of a model where all are meant, waits behind the session that an offline
instance answers, and could come from whoever reaches the server; the directory is open to the server's own user only.
``follow_keeper`` is called by the front doors, ``Drain`` is used by ``supervisor``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

logger = logging.getLogger(__name__)

CONTROL_VARIABLE = "BISTREAM_CONTROL"  # the directory; not set: the server has no keeper
LOOK_INTERVAL_S = 0.1  # a look at a file that is not there costs 2 us
CLOSING_S = 8.0  # how long after the deadline sessions may take to be told and taken down
_DRAIN = "drain"
_SERVING, _DRAINING, _DRAINED = "serving", "draining", "drained"


class Sessions(Protocol):
    """What a front door needs of ``Orchestrator``."""

    @property
    def open_sessions(self) -> int: ...
    def drain(self, deadline_s: float) -> None: ...


def follow_keeper(model_name: str, sessions: Sessions) -> None:
    """Drain ``sessions`` when the keeper says so. Does nothing where the server runs without a keeper."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if directory:
        FrontDoor(Path(directory), f"{model_name}-{os.getpid()}", sessions).start()


class FrontDoor:
    """One process that takes sessions. ``look`` is called by a thread of its own, or by a test."""

    def __init__(self, directory: Path, name: str, sessions: Sessions) -> None:
        self._directory = directory
        self._path = directory / f"{name}.door"
        self._sessions = sessions
        self._drain: threading.Thread | None = None
        self._reported = ""

    def start(self) -> None:
        self.look()  # the keeper knows this door before the model is ready
        threading.Thread(target=self._look_on, name="bistream-front-door", daemon=True).start()

    def look(self) -> bool:
        """See what the keeper wants and tell it how far that is. Returns whether everything has been said."""
        if self._drain is None:
            timeout_s = _read_timeout(self._directory)
            if timeout_s is None:
                return self._report(_SERVING)
            self._drain = threading.Thread(target=self._sessions.drain, args=(timeout_s,), name="bistream-drain", daemon=True)
            self._drain.start()
        if self._drain.is_alive():
            return self._report(f"{_DRAINING} {self._sessions.open_sessions}")
        return self._report(_DRAINED)

    def _report(self, status: str) -> bool:
        if status != self._reported:
            try:
                _write(self._path, status)
            except OSError as error:  # tried again with the next look; the keeper waits no longer than its deadline
                logger.warning("the keeper could not be told %r: %s", status, error)
                return False
            self._reported = status
        return status == _DRAINED

    def _look_on(self) -> None:
        while not self.look():
            time.sleep(LOOK_INTERVAL_S)


class Drain:
    """One drain, as its keeper sees it. ``start`` once, then ask ``is_over`` now and then."""

    def __init__(self, directory: Path, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._clock = clock
        self._give_up_at = 0.0

    def start(self) -> None:
        """Raises ``OSError`` when the front doors cannot be told."""
        self._give_up_at = self._clock() + self._timeout_s + CLOSING_S
        _write(self._directory / _DRAIN, str(self._timeout_s))

    def is_over(self) -> bool:
        """Whether every front door has said that no session is left, or the time is over."""
        return self._clock() >= self._give_up_at or all(status == _DRAINED for status in self._statuses())

    @property
    def sessions_left(self) -> int:
        """Running sessions of the doors that have begun to drain."""
        return sum(int(words[1]) for status in self._statuses() if (words := status.split())[0] == _DRAINING)

    def _statuses(self) -> list[str]:
        return [path.read_text(encoding="utf-8") for path in self._directory.glob("*.door")]


def _read_timeout(directory: Path) -> float | None:
    """Seconds; ``None`` while the keeper wants no drain."""
    with contextlib.suppress(FileNotFoundError):
        return float((directory / _DRAIN).read_text(encoding="utf-8"))
    return None


def _write(path: Path, text: str) -> None:
    """A reader sees all of the text or what was there before."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
