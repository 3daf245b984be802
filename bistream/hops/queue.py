"""The hops that wait, in the order of service, and how long a batch of them takes. Pure."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

SAMPLES = 32  # batches from which the pace is estimated
MAX_FIXED_SHARE = 0.75
MAX_SURPRISE = 4.0  # the duration of a batch is capped at this multiple of the usual and the expected one: a stall says nothing of the next


@dataclass(frozen=True, order=True)
class QueuedHop(Generic[T]):
    """deadline_s: when its listener runs out of audio; of a first hop, when it came."""

    is_later: bool
    deadline_s: float
    arrival: int
    tokens: int = field(compare=False)
    item: T = field(compare=False)

    @property
    def is_first(self) -> bool:
        return not self.is_later


class HopQueue(Generic[T]):
    """First hops before later ones, then the earliest deadline, then the order of arrival."""

    def __init__(self) -> None:
        self._hops: list[QueuedHop[T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._hops)

    def push(self, item: T, *, is_first: bool, deadline_s: float, tokens: int) -> None:
        self._arrivals += 1
        insort(self._hops, QueuedHop(not is_first, deadline_s, self._arrivals, tokens, item))

    def first(self, count: int) -> Sequence[QueuedHop[T]]:
        """The most urgent ones, which stay."""
        return self._hops[:count]

    def urgent(self, until_s: float) -> int:
        """How many are first hops or have a deadline up to then; these come first."""
        count = 0
        while count < len(self._hops) and (self._hops[count].is_first or self._hops[count].deadline_s <= until_s):
            count += 1
        return count

    def prefix(self, max_hops: int, max_tokens: float) -> int:
        """How many of the most urgent ones are within both limits; at least one unless the queue is empty."""
        count = tokens = 0
        while count < min(max_hops, len(self._hops)):
            tokens += self._hops[count].tokens
            if count and tokens > max_tokens:
                break
            count += 1
        return count

    def pop(self, count: int) -> list[QueuedHop[T]]:
        taken, self._hops = self._hops[:count], self._hops[count:]
        return taken

    def discard(self, item: T) -> None:
        """Remove it; does nothing if it is not queued."""
        self._hops = [hop for hop in self._hops if hop.item is not item]


class BatchPace:
    """How long a batch takes, and how many tokens fit into a time: a line through the last batches.

    Without a bound in time every ready hop would join the next batch, the order of service would have no effect, and a session about to
    run out of audio would wait for all the others. A bound in time adapts the batch size to the speed of the device.
    """

    def __init__(self, tokens_per_s: float) -> None:
        """tokens_per_s: assumed before anything was measured."""
        self._fixed_s = 0.0
        self._per_token_s = 1.0 / tokens_per_s
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES)

    def tokens_within(self, seconds: float) -> float:
        return max(0.0, seconds - self._fixed_s) / self._per_token_s

    def seconds(self, tokens: int) -> float:
        return self._fixed_s + self._per_token_s * tokens

    def observe(self, tokens: int, seconds: float) -> None:
        """Record the duration of a batch."""
        if tokens <= 0 or seconds <= 0:
            return
        if self._samples:
            usual_s = sum(took_s for _, took_s in self._samples) / len(self._samples)
            seconds = min(seconds, MAX_SURPRISE * max(usual_s, self.seconds(tokens)))
        self._samples.append((tokens, seconds))
        self._fixed_s, self._per_token_s = fixed_and_marginal(self._samples, (0.0, MAX_FIXED_SHARE), unknown_share=0.0)


def fixed_and_marginal(
    samples: Collection[tuple[float, float]], fixed_shares: tuple[float, float], unknown_share: float
) -> tuple[float, float]:
    """How long a batch takes by its size: seconds of any batch, and seconds above 0 for each unit, by least squares.

    samples: size, seconds. fixed_shares: least and most of the mean duration that are fixed. unknown_share: where all sizes are the same.
    """
    mean_size = sum(size for size, _ in samples) / len(samples)
    mean_s = sum(seconds for _, seconds in samples) / len(samples)
    variance = sum((size - mean_size) ** 2 for size, _ in samples)
    covariance = sum((size - mean_size) * (seconds - mean_s) for size, seconds in samples)
    fixed_s = mean_s - covariance / variance * mean_size if variance > 0.0 else unknown_share * mean_s
    least, most = fixed_shares
    fixed_s = min(max(least * mean_s, fixed_s), most * mean_s)
    return fixed_s, (mean_s - fixed_s) / mean_size
