"""How many sessions other front models have in token2wav: those that it reports beside a waveform, less our own at that moment.

Each front model is a process of its own, and token2wav is what they share. A report says nothing of what comes after it, so after
``REPORT_AGE_S`` without a new one nothing is known of the others.
"""

from __future__ import annotations

from collections.abc import Callable

REPORT_AGE_S = 5.0


class OtherFrontModels:
    """Not thread-safe: it belongs to the event loop of the orchestrator."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._own: set[str] = set()
        self._sessions = 0
        self._reported_at_s = float("-inf")

    def opened(self, session_id: str) -> None:
        """Its first hop goes to token2wav."""
        self._own.add(session_id)

    def ended(self, session_id: str) -> None:
        """token2wav has it no longer. Idempotent."""
        self._own.discard(session_id)

    def reported(self, sessions: int) -> None:
        """token2wav has so many sessions, our own among them."""
        self._sessions = max(0, sessions - len(self._own))
        self._reported_at_s = self._clock()

    @property
    def sessions(self) -> int:
        return self._sessions if self._clock() - self._reported_at_s <= REPORT_AGE_S else 0
