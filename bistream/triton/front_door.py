"""The front doors' side of a drain: passes the keeper's request (``control_files``) to the orchestrator and reports its progress.

``follow_keeper`` is called by the ``model.py`` files that take sessions.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Protocol

from bistream.control_files import CONTROL_VARIABLE, DRAINED, DRAINING, SERVING, read_drain, write_status

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1  # checking for an absent file costs 2 us


class Drainable(Protocol):
    """The part of ``Orchestrator`` that a front door needs."""

    @property
    def open_sessions(self) -> int: ...
    def drain(self, deadline_s: float) -> None: ...


def follow_keeper(model_name: str, orchestrator: Drainable) -> None:
    """Drain ``orchestrator`` when the keeper requests it. Does nothing if the server runs without a keeper."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if directory:
        FrontDoor(Path(directory), f"{model_name}-{os.getpid()}", orchestrator).start()


class FrontDoor:
    """One process that takes sessions. ``look`` is called by its own thread, or by a test."""

    def __init__(self, directory: Path, name: str, orchestrator: Drainable) -> None:
        self._directory = directory
        self._name = name
        self._orchestrator = orchestrator
        self._drain: threading.Thread | None = None
        self._reported = ""

    def start(self) -> None:
        self.look()  # the keeper knows this door before the model is ready
        threading.Thread(target=self._look_on, name="bistream-front-door", daemon=True).start()

    def look(self) -> bool:
        """Check for a request of the keeper and report progress. Returns whether the end of the drain has been reported."""
        if self._drain is None:
            timeout_s = read_drain(self._directory)
            if timeout_s is None:
                return self._report(SERVING)
            self._drain = threading.Thread(target=self._orchestrator.drain, args=(timeout_s,), name="bistream-drain", daemon=True)
            self._drain.start()
        if self._drain.is_alive():
            return self._report(f"{DRAINING} {self._orchestrator.open_sessions}")
        return self._report(DRAINED)

    def _report(self, status: str) -> bool:
        if status != self._reported:
            try:
                write_status(self._directory, self._name, status)
            except OSError as error:  # retried with the next look; the keeper waits at most until its deadline
                logger.warning("the status %r could not be reported to the keeper: %s", status, error)
                return False
            self._reported = status
        return status == DRAINED

    def _look_on(self) -> None:
        while not self.look():
            time.sleep(LOOK_INTERVAL_S)
