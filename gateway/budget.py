"""How much the gate holds for its clients, in bytes, all of them together and each address by itself."""

from __future__ import annotations


class Budget:
    """limit: bytes; 0 is no limit. whole: the budget that this one is a share of, and which counts the same bytes."""

    __slots__ = ("_whole", "limit", "used")

    def __init__(self, limit: int = 0, whole: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._whole = whole

    def add(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer where it is negative."""
        self.used += size
        if self._whole is not None:
            self._whole.add(size)

    @property
    def is_exceeded(self) -> bool:
        return 0 < self.limit < self.used or (self._whole is not None and self._whole.is_exceeded)
