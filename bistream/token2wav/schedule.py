"""What the worker of token2wav does next: a step of the background, a step of the batch in progress, a new batch, or waiting. Pure.

Owns what waits. Not thread-safe: used with the service's condition held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bistream.hops.batch_rules import NEARLY_LATE_S, BatchRules, StepDecision
from bistream.hops.queue import HopQueue, QueuedHop
from bistream.token2wav.background import Background, BackgroundShare, Work
from bistream.token2wav.computing import HopBatch
from bistream.token2wav.hop_jobs import AudioSession, HopJob


@dataclass(frozen=True)
class NextAction:
    """One of: work of the background; hops that make a batch, with others left over or not; resumes: a step of the batch in progress;
    waits: for a moment, as the language model goes first."""

    work: Work | None = None
    hops: Sequence[QueuedHop[HopJob]] = ()
    resumes: HopBatch | None = None
    hops_wait: bool = False
    leftover: bool = False
    waits: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing is left to do."""
        return not (self.work or self.hops or self.resumes or self.leftover or self.waits)


class Schedule:
    """started: the batch in progress that may give way; at most one."""

    def __init__(
        self,
        rules: BatchRules,
        share: BackgroundShare,
        on_decision: Callable[[StepDecision], None],
        others_first: Callable[[float], bool],
    ) -> None:
        """others_first: whether work for which nobody waits should wait at this time, because others need the GPU."""
        self._rules = rules
        self._share = share
        self._on_decision = on_decision
        self._others_first = others_first
        self._waits = False
        self._postponed: list[HopJob] = []
        self.queue: HopQueue[HopJob] = HopQueue()
        self.background = Background()
        self.started: HopBatch | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.background or self.started)

    def is_urgent(self, now_s: float) -> bool:
        """Whether urgent hops wait."""
        return self.queue.urgent(now_s + NEARLY_LATE_S) > 0

    def enqueue(self, job: HopJob) -> None:
        """A hop is the oldest one of its session."""
        self.queue.push(job, is_first=job.is_first, deadline_s=job.deadline_s, tokens=len(job.hop.token_ids))

    def discard(self, job: HopJob) -> None:
        """Its session has ended, so it decides nothing any more; without effect where it is not in the queue."""
        self.queue.discard(job)

    def postpone(self, jobs: Sequence[HopJob]) -> None:
        """Until the batch in progress has ended."""
        self._postponed += jobs

    def next(self, now_s: float) -> NextAction:
        """What is chosen has left the queue; an action without anything: wait."""
        hops_wait = bool(self.queue or self.started)
        work = self.background.take() if self._share.is_due(hops_wait) else None
        if work is not None:
            return NextAction(work=work, hops_wait=hops_wait)
        if self._lets_pass(now_s):
            return NextAction(waits=True)
        if self.started is not None and not self._gives_way(self.started, now_s):
            return NextAction(resumes=self.started)
        hops = self._rules.next_batch(self.queue, now_s)
        return NextAction(hops=hops, leftover=bool(self.queue))

    def begun(self, batch: HopBatch, now_s: float) -> bool:
        """Whether a new batch is now the one in progress. Otherwise it is to be finished at once."""
        if self.started is not None or batch.standing is None or not self._rules.may_be_interrupted(batch.standing, now_s):
            return False
        self.started = batch
        return True

    def ended(self, batch: HopBatch) -> None:
        if batch is self.started:
            self.started = None
            postponed, self._postponed = self._postponed, []
            for job in postponed:
                if not job.session.has_ended:
                    self.enqueue(job)

    def is_computing(self, session: AudioSession) -> bool:
        """Whether a hop of the session is in progress, so that it must not be closed."""
        return self.started is not None and any(hop.item.session is session for hop in self.started.hops)

    def _lets_pass(self, now_s: float) -> bool:
        standing = None if self.started is None else self.started.standing
        waits = self._rules.may_wait(standing, self.queue, now_s) and self._others_first(now_s)
        if waits and not self._waits:
            self._on_decision(StepDecision.LETS_PASS)
        self._waits = waits
        return waits

    def _gives_way(self, batch: HopBatch, now_s: float) -> bool:
        assert batch.standing is not None
        decision = self._rules.after_step(batch.standing, self.queue, now_s)
        self._on_decision(decision)
        if decision is StepDecision.SUSPEND:
            batch.standing.suspensions += 1
        return decision is StepDecision.SUSPEND
