"""How long to wait before the next restart. Pure; the clock is injected.

A first failure is answered at once, so that one crash costs no more than the restart itself. Each further failure within the window
doubles the delay. When the budget of the window is used up, the delay stays at its longest and the caller says so: a server that fails
again and again needs the operator, but a restart once a minute costs little and ends the outage when the cause has gone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartLimits:
    """budget: restarts within ``window_s`` before every further one waits for ``longest_delay_s``; the second one waits for
    ``first_delay_s``, each later one twice as long as the one before."""

    budget: int = 5
    window_s: float = 600.0
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0


class RestartPolicy:
    """Counts failures of one process."""

    def __init__(self, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._failures: deque[float] = deque()

    def record_failure(self) -> float:
        """Count a failure that happens now; returns the seconds to wait before the restart."""
        self._failures.append(self._clock())
        count = self.failures
        if count <= 1:
            return 0.0
        if self.is_exhausted:
            return self._limits.longest_delay_s
        return min(self._limits.first_delay_s * 2.0 ** (count - 2), self._limits.longest_delay_s)

    @property
    def failures(self) -> int:
        """Within the window that ends now."""
        oldest = self._clock() - self._limits.window_s
        while self._failures and self._failures[0] <= oldest:
            self._failures.popleft()
        return len(self._failures)

    @property
    def is_exhausted(self) -> bool:
        """Whether the window has seen more failures than its budget."""
        return self.failures > self._limits.budget
