"""What sessions leave behind for the sessions that continue them. Bounded in number and time; one for each table of sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from bistream.contract.ended_sessions import MAX_ENDED

KEPT_S = 60.0  # a melody is forgotten within a minute, as a listener forgets it

Left = TypeVar("Left")


class EarlierSessions(Generic[Left]):
    """By whatever the table knows sessions by. Not thread-safe: used under the lock of the table."""

    def __init__(self, clock: Callable[[], float], capacity: int = MAX_ENDED) -> None:
        self._clock = clock
        self._capacity = capacity
        self._left: OrderedDict[Hashable, tuple[float, Left]] = OrderedDict()  # and when it ended, the oldest first

    def __len__(self) -> int:
        return len(self._left)

    def add(self, key: Hashable, left: Left) -> None:
        """Its session has just ended. Those that ended too long ago go, and the oldest one where there are too many."""
        now = self._clock()
        self._left.pop(key, None)
        self._left[key] = now, left
        while len(self._left) > self._capacity or self._is_over(next(iter(self._left.values()))[0], now):
            self._left.popitem(last=False)

    def find(self, key: Hashable) -> Left | None:
        """None: there was no such session, or it ended too long ago."""
        ended_at, left = self._left.get(key, (0.0, None))
        return None if left is None or self._is_over(ended_at, self._clock()) else left

    @staticmethod
    def _is_over(ended_at: float, now: float) -> bool:
        return now - ended_at > KEPT_S
