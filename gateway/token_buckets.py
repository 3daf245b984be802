"""Token buckets, one for each holder: an API key, or a network address. Used by the gate and by the interfaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MAX_BUCKETS = 10_000  # beyond it, those that are full again are forgotten


@dataclass(slots=True)
class _Bucket:
    """tokens: those that were there at ``filled_at``."""

    tokens: float
    filled_at: float


class TokenBuckets:
    """rate: tokens per second, above 0. burst: tokens of a full bucket."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def lowest(self, holders: Iterable[str]) -> float:
        """Tokens in the emptiest bucket of these holders."""
        now = self._clock()
        return min(self._filled(holder, now).tokens for holder in holders)

    def take(self, holders: Iterable[str], least: float = 0.0) -> None:
        """A token from each bucket, but none below ``least``."""
        now = self._clock()
        for holder in holders:
            bucket = self._filled(holder, now)
            bucket.tokens = max(least, bucket.tokens - 1.0)

    def _filled(self, holder: str, now: float) -> _Bucket:
        bucket = self._buckets.get(holder)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._forget_full(now)
            bucket = self._buckets[holder] = _Bucket(self._burst, now)
        bucket.tokens = min(self._burst, bucket.tokens + self._rate * (now - bucket.filled_at))
        bucket.filled_at = now
        return bucket

    def _forget_full(self, now: float) -> None:
        """A full bucket says nothing; others fill up within seconds."""
        self._buckets = {
            name: bucket for name, bucket in self._buckets.items() if bucket.tokens + self._rate * (now - bucket.filled_at) < self._burst
        }
