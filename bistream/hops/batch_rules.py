"""Who computes next in token2wav: which hops make a batch, and whether a batch in progress gives way after a step of the solver. Pure.

In: the queue of hops, the time, what is known of the batch in progress. Out: a batch, or a ``StepDecision``. Called by the service's worker
with its lock held, and by simulations; the clock is theirs.

Urgent are first hops, whose listeners hear nothing yet, and hops whose listeners run out of audio within ``NEARLY_LATE_S``.

- Where more hops wait than a long batch takes, of listeners with less than ``AMPLE_AUDIO_S``, the server is short of time, and a batch is
  as long as possible, urgent hops first: long ones make most audio per second. Urgent hops alone would let all listeners' audio shrink,
  and with it the hops, until all are urgent.
- Otherwise, with urgent hops waiting, a batch is theirs alone, and of medium length at most.
- With none waiting it is long, which costs the next urgent hop a step of the solver.
- After each step a batch without urgent hops gives way to urgent ones, unless it is nearly done, has given way ``MAX_SUSPENSIONS``
  times, or its own listeners could then run out: they must have audio for the batch that goes first, for what is left of their own, and
  ``MARGIN_S``. So a batch is suspended for at most ``MAX_SUSPENSIONS`` long batches.
- Without urgent hops, and while the server is not short of time, a batch or its next step may also wait for the language model, which
  computes for somebody who waits (``gpu.claims``), until its own listeners are nearly late.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bistream.hops.queue import BatchPace, HopQueue, QueuedHop

T = TypeVar("T")

MAX_BATCH_HOPS = 64
LONG_BATCH_S = 0.15  # of which every hop that comes meanwhile would wait half, on average
MEDIUM_BATCH_S = 0.08
FIRST_TOKENS_PER_S = 500.0  # pace assumed before the first measurement
NEARLY_LATE_S = 0.25  # more than a long batch: the hop policy's ``urgent_buffer_s``, at which it stops waiting for whole chunks
AMPLE_AUDIO_S = 6.0  # less at a server that is short of time, and the hops of all shrink (tests/unit/sessions/test_overload.py)
MARGIN_S = 0.05  # for what predictions of a batch's time miss
NEARLY_DONE_STEPS = 1
MAX_SUSPENSIONS = 5  # of one batch


class StepDecision(enum.Enum):
    """After a step of a batch that is not done. Values are labels of a metric."""

    NOBODY_WAITS = "nobody_waits"
    URGENT = "urgent"  # the batch has urgent hops itself
    NEARLY_DONE = "nearly_done"
    OFTEN_ENOUGH = "often_enough"
    NO_SLACK = "no_slack"
    LETS_PASS = "lets_pass"  # the language model, once for each wait
    SUSPEND = "suspend"  # all others: go on


@dataclass
class BatchStanding:
    """A batch in progress. earliest_deadline_s: of its hops; tokens: of all of them. suspensions: how often it has given way."""

    has_first: bool
    earliest_deadline_s: float
    tokens: int
    steps: int
    steps_left: int
    suspensions: int = 0

    @classmethod
    def of(cls, hops: Sequence[QueuedHop[T]], steps: int) -> BatchStanding:
        return cls(
            any(hop.is_first for hop in hops),
            min((hop.deadline_s for hop in hops), default=0.0),
            sum(hop.tokens for hop in hops),
            steps,
            steps,
        )


class BatchRules:
    """max_hops: of a batch."""

    def __init__(self, pace: BatchPace, max_hops: int = MAX_BATCH_HOPS) -> None:
        self.pace = pace
        self._max_hops = max_hops

    def next_batch(self, queue: HopQueue[T], now_s: float) -> list[QueuedHop[T]]:
        """Take the next batch from the queue; empty if that is."""
        return queue.pop(self._size(queue, now_s))

    def may_be_interrupted(self, batch: BatchStanding, now_s: float) -> bool:
        """Whether a batch that begins now may give way at all; one that may not is best computed without a look between its steps."""
        is_urgent = batch.has_first or batch.earliest_deadline_s <= now_s + NEARLY_LATE_S
        return batch.steps > 1 and not is_urgent

    def after_step(self, batch: BatchStanding, queue: HopQueue[T], now_s: float) -> StepDecision:
        """What a batch with steps left does now; also asked when a batch that went first is done."""
        urgent = queue.urgent(now_s + NEARLY_LATE_S)
        if not urgent:
            return StepDecision.NOBODY_WAITS
        if batch.has_first:
            return StepDecision.URGENT
        if batch.steps_left <= NEARLY_DONE_STEPS:
            return StepDecision.NEARLY_DONE
        if batch.suspensions >= MAX_SUSPENSIONS:
            return StepDecision.OFTEN_ENOUGH
        first_s = self.pace.seconds(sum(hop.tokens for hop in queue.first(self._size(queue, now_s))))
        rest_s = self.pace.seconds(batch.tokens) * batch.steps_left / batch.steps
        if batch.earliest_deadline_s - now_s < first_s + rest_s + MARGIN_S:
            return StepDecision.NO_SLACK
        return StepDecision.SUSPEND

    def may_wait(self, batch: BatchStanding | None, queue: HopQueue[T], now_s: float) -> bool:
        """Whether what is computed next may wait for urgent work of others on the GPU. batch: in progress."""
        if queue.urgent(now_s + NEARLY_LATE_S) or self._is_short_of_time(queue, now_s):
            return False
        deadlines = [hop.deadline_s for hop in queue.first(1)] if batch is None else [batch.earliest_deadline_s]
        return any(deadline_s >= now_s + NEARLY_LATE_S + MARGIN_S for deadline_s in deadlines)

    def _longest(self, queue: HopQueue[T]) -> int:
        return queue.prefix(self._max_hops, self.pace.tokens_within(LONG_BATCH_S))

    def _is_short_of_time(self, queue: HopQueue[T], now_s: float) -> bool:
        return self._longest(queue) < queue.urgent(now_s + AMPLE_AUDIO_S)

    def _size(self, queue: HopQueue[T], now_s: float) -> int:
        """Hops of the next batch; at least one unless the queue is empty."""
        longest = self._longest(queue)
        if self._is_short_of_time(queue, now_s):
            return longest
        urgent = queue.urgent(now_s + NEARLY_LATE_S)
        return min(urgent, queue.prefix(self._max_hops, self.pace.tokens_within(MEDIUM_BATCH_S))) if urgent else longest
