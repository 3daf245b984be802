"""The front doors' side of a drain and of a failure: passes what the keeper writes (``control_files``) on, and reports progress.

``follow_keeper`` is called by the ``model.py`` files that take sessions.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bistream.control_files import CONTROL_VARIABLE, DRAINED, DRAINING, SERVING, read_drain, read_failure, write_status

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1  # checking for an absent file costs 2 us


class Drainable(Protocol):
    """The part of ``Orchestrator`` that a front door needs."""

    @property
    def open_sessions(self) -> int: ...
    def drain(self, deadline_s: float) -> None: ...
    def fail(self, model: str, patience_s: float) -> None: ...


def follow_keeper(model_name: str, orchestrator: Drainable) -> None:
    """End the sessions of ``orchestrator`` when the keeper requests it. Does nothing if the server runs without a keeper."""
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
        self._failure: threading.Thread | None = None
        self._reported = ""

    def start(self) -> None:
        self.look()  # the keeper knows this door before the model is ready
        threading.Thread(target=self._look_on, name="bistream-front-door", daemon=True).start()

    def look(self) -> bool:
        """Check for a request of the keeper and report progress. Returns whether the end of the sessions has been reported."""
        if self._failure is None and (failure := read_failure(self._directory)) is not None:
            self._failure = self._begin("failure", self._orchestrator.fail, *failure)
        if self._drain is None and self._failure is None and (timeout_s := read_drain(self._directory)) is not None:
            self._drain = self._begin("drain", self._orchestrator.drain, timeout_s)
        ending = self._failure or self._drain
        if ending is None:
            self._report(SERVING)
        elif ending.is_alive():
            self._report(f"{DRAINING} {self._orchestrator.open_sessions}")
        else:
            return self._report(DRAINED)
        return False

    def _begin(self, name: str, end_sessions: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=end_sessions, args=arguments, name=f"bistream-{name}", daemon=True)
        thread.start()
        return thread

    def _report(self, status: str) -> bool:
        """Whether the keeper knows it."""
        if status != self._reported:
            try:
                write_status(self._directory, self._name, status)
            except OSError as error:  # retried with the next look; the keeper waits at most until its deadline
                logger.warning("the status %r could not be reported to the keeper: %s", status, error)
                return False
            self._reported = status
        return True

    def _look_on(self) -> None:
        while not self.look():
            time.sleep(LOOK_INTERVAL_S)
