"""Other ways to make batches of hops than the server's, for the simulation in ``_deadline_load``."""

from __future__ import annotations

from benchmarks._deadline_callers import Hop
from bistream.token2wav.hop_queue import BatchPace, HopQueue, QueuedHop
from bistream.token2wav.turns import AMPLE_AUDIO_S, FIRST_TOKENS_PER_S, LONG_BATCH_S, MAX_BATCH_HOPS, NEARLY_LATE_S, Turns


class WholeBatches(Turns):
    """What the server did before: whole batches of up to ``LONG_BATCH_S``, by the pace of the last ones."""

    def __init__(self) -> None:
        super().__init__(BatchPace(FIRST_TOKENS_PER_S), 0)
        self._tokens_per_s = FIRST_TOKENS_PER_S

    def next_batch(self, queue: HopQueue[Hop], now_s: float) -> list[QueuedHop[Hop]]:  # type: ignore[override]
        return queue.pop(queue.prefix(MAX_BATCH_HOPS, LONG_BATCH_S * self._tokens_per_s))

    def observed(self, tokens: int, seconds: float) -> None:
        self._tokens_per_s += (tokens / seconds - self._tokens_per_s) / 4


class ShorterCalm(Turns):
    """As the server, but without urgent hops a batch takes at most ``calm_s`` while first hops keep coming. Tried; brings nothing."""

    def __init__(self, max_suspensions: int, calm_s: float) -> None:
        super().__init__(BatchPace(FIRST_TOKENS_PER_S), max_suspensions)
        self._calm_s = calm_s

    def next_batch(self, queue: HopQueue[Hop], now_s: float) -> list[QueuedHop[Hop]]:  # type: ignore[override]
        size = self._size(queue, now_s)
        is_short_of_time = queue.prefix(MAX_BATCH_HOPS, self.pace.tokens_within(LONG_BATCH_S)) < queue.urgent(now_s + AMPLE_AUDIO_S)
        somebody_comes = self.arrivals.per_s(now_s) * LONG_BATCH_S >= 1.0
        if somebody_comes and not is_short_of_time and not queue.urgent(now_s + NEARLY_LATE_S):
            size = min(size, queue.prefix(MAX_BATCH_HOPS, self.pace.tokens_within(self._calm_s)))
        return queue.pop(size)
