"""The keeper's side of a drain: ask the front doors for it (``control_files``) and see how far they are. Used by ``server_process``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bistream.control_files import DRAINED, DRAINING, read_statuses, write_drain

CLOSING_S = 8.0  # how long after the deadline sessions may take to be told and taken down


class Drain:
    """One drain. ``start`` once, then ask ``is_over`` now and then."""

    def __init__(self, directory: Path, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._clock = clock
        self._give_up_at = 0.0

    def start(self) -> None:
        """Raises ``OSError`` when the front doors cannot be told."""
        self._give_up_at = self._clock() + self._timeout_s + CLOSING_S
        write_drain(self._directory, self._timeout_s)

    def is_over(self) -> bool:
        """Whether every front door has said that no session is left, or the time is over."""
        return self._clock() >= self._give_up_at or all(status == DRAINED for status in read_statuses(self._directory))

    @property
    def sessions_left(self) -> int:
        """Running sessions of the doors that have begun to drain."""
        return sum(int(words[1]) for status in read_statuses(self._directory) if (words := status.split())[0] == DRAINING)
