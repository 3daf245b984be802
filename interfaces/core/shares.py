"""What one client may take of what all clients share: places, and new utterances per second. Decisions only, no waiting.

A *holder* is an API key, or a network address; a client counts for both (``Caller.holders``).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bistream.errors import BusyError
from gateway.token_buckets import TokenBuckets

BURST_S = 2.0  # so many seconds' worth of starts may come at once
MAX_PAUSE_S = 1.0


class ShareError(BusyError):
    """Of one client: others are served. pause_s: for which nothing more is read from where it came."""

    pause_s = 0.0


class QuotaError(ShareError):
    """Waiting does not help."""

    retryable = False


def whose(holder: str) -> str:
    return "API key" if holder.startswith("API key ") else "address"


def share_of(whole: int, share: float) -> int:
    """Of one holder."""
    return max(1, math.floor(whole * share))


class Places:
    """Every ``take`` that returned must be followed by its ``give_back``, with the same holders."""

    def __init__(self, what: str, whole: int, share: float) -> None:
        """what: in the plural. whole: 0: no limit. share: of it, for one holder."""
        self.taken = 0
        self._what = what
        self._whole = whole
        self._each = share_of(whole, share)
        self._by_holder: Counter[str] = Counter()

    def take(self, holders: Sequence[str]) -> None:
        """Raises ``BusyError``; a refusal is not counted."""
        if self._whole:
            for holder in holders:
                if self._by_holder[holder] >= self._each:
                    raise ShareError(
                        f"Your {whose(holder)} has {self._each} {self._what}, which is its share; try again in 1.0 s.", retry_after_s=1.0
                    )
            if self.taken >= self._whole:
                raise BusyError(f"All {self._whole} {self._what} are taken; try again in 1.0 s.", retry_after_s=1.0)
        self.taken += 1
        self._by_holder.update(holders)

    @contextlib.contextmanager
    def taken_by(self, holders: Sequence[str]) -> Iterator[None]:
        """For as long as it is open."""
        self.take(holders)
        try:
            yield
        finally:
            self.give_back(holders)

    def give_back(self, holders: Sequence[str]) -> None:
        self.taken -= 1
        for holder in holders:
            self._by_holder[holder] -= 1
            if self._by_holder[holder] <= 0:
                del self._by_holder[holder]


class Starts:
    """New utterances per second, of each holder."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """per_second: steadily; 0: no limit."""
        self._rate = per_second
        self._burst = max(1.0, per_second * BURST_S)
        self._buckets = TokenBuckets(per_second, self._burst, clock)

    def take(self, holders: Sequence[str]) -> None:
        """Raises ``ShareError``. What is refused costs a start as well: a client that does not wait is told so less and less often."""
        if not self._rate or not holders:
            return
        is_refused = self._buckets.lowest(holders) < 1.0
        self._buckets.take(holders, least=-self._burst)
        if is_refused:
            wait_s = max(0.1, (1.0 - self._buckets.lowest(holders)) / self._rate)
            sentence = f"More than {self._rate:g} utterances per second are begun from here; try again in {wait_s:.1f} s."
            error = ShareError(sentence, retry_after_s=wait_s)
            error.pause_s = min(MAX_PAUSE_S, wait_s)
            raise error
