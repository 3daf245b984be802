"""The keeper's side of a drain and of a failure: tell the front doors (``control_files``), follow their progress.

Used by ``server_process`` and ``served_models``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bistream.control_files import DRAINED, DRAINING, read_statuses, write_drain, write_failure
from bistream.heartbeats import LONGEST_STOP_S

CLOSING_S = LONGEST_STOP_S + 2.0  # after the deadline, to notify the remaining clients and close their sessions
TELLING_S = 2.0  # after the deadline of a failure, to notify them; nothing is closed then


class Drain:
    """One drain. ``start`` once, then poll ``is_over``."""

    def __init__(self, directory: Path, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._clock = clock
        self._give_up_at = 0.0

    def start(self) -> None:
        """Raises ``OSError`` when the request cannot be written."""
        self._give_up_at = self._clock() + self._timeout_s + CLOSING_S
        write_drain(self._directory, self._timeout_s)

    def is_over(self) -> bool:
        """Whether every front door has reported that no session is left, or the time is up."""
        return self._clock() >= self._give_up_at or all(status == DRAINED for status in read_statuses(self._directory))

    @property
    def sessions_left(self) -> int:
        """Sessions still running at the front doors that have begun to drain."""
        return sum(int(words[1]) for status in read_statuses(self._directory) if (words := status.split())[0] == DRAINING)


class FailureNotice(Drain):
    """The end of sessions before a restart: of those that need a failed model at once, of the others after some patience."""

    def __init__(self, directory: Path, model: str, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(directory, patience_s, clock)
        self._model = model

    def start(self) -> None:
        self._give_up_at = self._clock() + self._timeout_s + TELLING_S
        write_failure(self._directory, self._model, self._timeout_s)
