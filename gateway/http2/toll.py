"""What frames cost that are cheap for the peer and dear for us: a bucket of tokens for each connection, and one for each address."""

from __future__ import annotations

from collections.abc import Callable


class Toll:
    """A token bucket. burst: tokens at the start and at most; per_second: how fast they come back."""

    __slots__ = ("_burst", "_clock", "_paid_at", "_per_second", "_tokens")

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._tokens = burst
        self._paid_at = clock()

    def take(self, tokens: float) -> float:
        """Those that are left; below 0 too many were taken."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + self._per_second * (now - self._paid_at)) - tokens
        self._paid_at = now
        return self._tokens

    def give(self, tokens: float) -> None:
        """For frames that the peer may send because of what we have sent, or has sent with content."""
        self._tokens += tokens

    @property
    def debt_s(self) -> float:
        """Until nothing is owed."""
        return max(0.0, -self.take(0.0) / self._per_second)

    @property
    def is_full(self) -> bool:
        return self.take(0.0) >= self._burst
