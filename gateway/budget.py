"""How much the gate holds for its clients, in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bistream.errors import BusyError

SMALL = 16 * 1024  # bytes of one request that are held whatever the others take
SHARES = 4  # one holder may take the whole divided by it


class Budget:
    """limit: 0 is no limit."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0

    def add(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer where it is negative."""
        self.used += size

    @property
    def is_exceeded(self) -> bool:
        return 0 < self.limit < self.used


class InputBudget:
    """Of requests that wait, all clients together, of which one holder gets a share. limit: 0 is no limit."""

    def __init__(self, limit: int = 0) -> None:
        self.used = 0
        self._limit = limit
        self._by_holder: Counter[str] = Counter()

    @contextmanager
    def holding(self, holder: str) -> Iterator[Callable[[int], None]]:
        """One request, as it comes: a function that counts more of its bytes, and raises ``BusyError`` when they are too many."""
        size = 0

        def add(more: int) -> None:
            nonlocal size
            size += more
            self._count(holder, more)
            if self._limit and size > SMALL and (self.used > self._limit or self._by_holder[holder] > self._limit // SHARES):
                raise BusyError("The server holds too many unfinished requests; try again later.")

        try:
            yield add
        finally:
            self._count(holder, -size)

    def _count(self, holder: str, size: int) -> None:
        self.used += size
        self._by_holder[holder] += size
        if not self._by_holder[holder]:
            del self._by_holder[holder]
