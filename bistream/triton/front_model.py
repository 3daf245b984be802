"""The front models' side of a drain and of a failure: passes the keeper's order (``control_files``) on, and reports progress.

``follow_keeper`` is called by ``cosyvoice2_bistream``, the model that takes sessions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bistream.processes.control_files import CONTROL_VARIABLE, read_order
from bistream.triton.status_writer import StatusWriter

if TYPE_CHECKING:
    from bistream.sessions.orchestrator import Orchestrator

LOOK_INTERVAL_S = 0.1  # checking for an absent file costs 2 us


def follow_keeper(status: StatusWriter, orchestrator: Orchestrator) -> None:
    """End the sessions of ``orchestrator`` when the keeper requests it. Does nothing if the server runs without a keeper."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if directory:
        FrontModel(Path(directory), status, orchestrator).start()


class FrontModel:
    """One process that takes sessions. ``look`` is called by its own thread, or by a test."""

    def __init__(self, directory: Path, status: StatusWriter, orchestrator: Orchestrator) -> None:
        self._directory = directory
        self._status = status
        self._orchestrator = orchestrator
        self._drain: threading.Thread | None = None
        self._failure: threading.Thread | None = None

    def start(self) -> None:
        self.look()  # the keeper knows this door before the model is ready
        threading.Thread(target=self._look_on, name="bistream-front-model", daemon=True).start()

    def look(self) -> bool:
        """Check for an order of the keeper and report progress. Returns whether the end of the sessions has been reported."""
        order = read_order(self._directory)
        if order is not None and order.failed is not None and self._failure is None:
            self._failure = self._begin("failure", self._orchestrator.fail, order.failed, order.patience_s)
        elif order is not None and order.failed is None and self._drain is None:
            self._drain = self._begin("drain", self._orchestrator.drain, order.patience_s)
        ending = self._failure or self._drain
        is_drained = ending is not None and not ending.is_alive()
        self._status.report_sessions(0 if ending is None or is_drained else self._orchestrator.open_sessions, is_drained)
        return is_drained

    def _begin(self, name: str, end_sessions: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=end_sessions, args=arguments, name=f"bistream-{name}", daemon=True)
        thread.start()
        return thread

    def _look_on(self) -> None:
        while not self.look():
            time.sleep(LOOK_INTERVAL_S)
