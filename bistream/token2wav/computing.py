"""What the worker of token2wav computes between two decisions: hops, in steps or at once, or a step of the background. It measures them.

On the worker's thread, without any lock. Used by ``service``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bistream.errors import BistreamError, BusyError
from bistream.hops.batch_rules import BatchStanding
from bistream.hops.queue import BatchPace, QueuedHop
from bistream.token2wav.background import BackgroundShare, OfflineJob, Work
from bistream.token2wav.capacity import CapacityMeter
from bistream.token2wav.hop_jobs import HopJob
from bistream.token2wav.marking import Marking
from bistream.token2wav.renderer import HopsInProgress, Outcome, RendererHop, SpeechRenderer

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class HopBatch:
    """Hops that are computed together. took_s: time spent on them so far. waited_before_s: all that was waited before it began.

    answers: outcomes of jobs. preparing: jobs that wait until the voice of their session is prepared. postponed: jobs for which there is no
    room while the batch in progress holds its pages.
    """

    leftover: bool
    began_s: float
    waited_before_s: float = 0.0
    hops: list[QueuedHop[HopJob]] = field(default_factory=list)
    answers: list[tuple[HopJob, Outcome]] = field(default_factory=list)
    preparing: list[HopJob] = field(default_factory=list)
    postponed: list[HopJob] = field(default_factory=list)
    rendered: HopsInProgress | None = None
    standing: BatchStanding | None = None  # from ``begin`` on, if there is something to compute
    took_s: float = 0.0
    succeeded: list[HopJob] = field(default_factory=list)  # of the hops, once they are finished

    @property
    def tokens(self) -> int:
        """Of the hops that became audio: those that failed took no time that would say anything."""
        return sum(len(job.hop.token_ids) for job in self.succeeded)


class Computing:
    def __init__(
        self,
        renderer: SpeechRenderer,
        clock: Callable[[], float],
        capacity: CapacityMeter,
        pace: BatchPace,
        marking: Marking,
        on_batch: Callable[[Sequence[HopJob], float, float, float], None],
    ) -> None:
        """on_batch: told which hops were computed together, when that began, how long it took, and when it ended."""
        self._renderer = renderer
        self._clock = clock
        self._capacity = capacity
        self._pace = pace
        self._on_batch = on_batch
        self._marking = marking
        self._went_first: list[HopBatch] = []  # those that were computed while another one was in progress
        self._waited_s = 0.0  # with hops to compute, for others on the GPU: no part of the pace
        self.share = BackgroundShare()

    def begin(self, hops: Sequence[QueuedHop[HopJob]], leftover: bool, is_alone: bool) -> HopBatch:
        """Open new sessions, and begin the hops of all that are ready. leftover: other hops wait. is_alone: no batch is in progress."""
        batch = HopBatch(leftover, self._clock(), waited_before_s=self._waited_s)
        for hop in hops:
            job, session = hop.item, hop.item.session
            try:
                rendering = session.rendering or self._renderer.open(session.prompt, session.audio.seed, session.expected_speech_s)
            except BusyError as error:
                if is_alone:
                    batch.answers.append((job, error))
                else:
                    batch.postponed.append(job)
                continue
            except BistreamError as error:
                batch.answers.append((job, error))
                continue
            session.rendering = rendering
            if rendering.needs_preparation:
                batch.preparing.append(job)
            elif job.needs_computing:
                batch.hops.append(hop)
            else:
                batch.answers.append((job, np.zeros(0, np.float32)))
        if batch.hops:
            batch.rendered = self._renderer.begin([_renderer_hop(hop.item) for hop in batch.hops])
            batch.standing = BatchStanding.of(batch.hops, batch.rendered.steps_left)
            self._took(batch, batch.began_s)
        return batch

    def step(self, batch: HopBatch) -> None:
        """One step of a batch in progress."""
        assert batch.rendered is not None and batch.standing is not None
        began_s = self._clock()
        batch.rendered.step()
        batch.standing.steps_left = batch.rendered.steps_left
        self._took(batch, began_s)

    def finish(self, batch: HopBatch, is_alone: bool) -> None:
        """All that is left of a batch, without a pause; its answers are complete then."""
        if batch.rendered is None:
            return
        began_s = self._clock()
        jobs = [hop.item for hop in batch.hops]
        outcomes = self._marking.hops([job.session for job in jobs], batch.rendered.finish())
        self._took(batch, began_s)
        batch.answers += zip(jobs, outcomes, strict=True)
        batch.succeeded = [job for job, outcome in zip(jobs, outcomes, strict=True) if not isinstance(outcome, BistreamError)]
        ended_s = self._clock()
        self._pace.observe(batch.tokens, batch.took_s)
        self._on_batch(jobs, batch.began_s, batch.took_s, ended_s)
        logger.debug("%d hops, %d tokens: %.1f ms", len(jobs), batch.tokens, 1000 * batch.took_s)
        self._went_first.append(batch)
        if is_alone:
            self._observe_capacity(batch, ended_s)

    def _observe_capacity(self, batch: HopBatch, ended_s: float) -> None:
        """Batches that were computed in turns count as one: the pace of the server is that of all of them, without the time they waited."""
        counted, self._went_first = self._went_first, []
        if not any(each.succeeded for each in counted):
            return
        audio_s = sum(each.tokens for each in counted) / self._renderer.sizes.tokens_per_second
        began_s, ended_s = batch.began_s - batch.waited_before_s, ended_s - self._waited_s
        self._capacity.observe(audio_s, sum(len(each.succeeded) for each in counted), began_s, ended_s, batch.leftover)

    def waited(self, seconds: float) -> None:
        """Others had the GPU meanwhile."""
        self._waited_s += seconds

    def _took(self, batch: HopBatch, began_s: float) -> None:
        seconds = self._clock() - began_s
        batch.took_s += seconds
        self.share.hops_took(seconds)

    def background_step(self, work: Work, hops_wait: bool) -> tuple[bool, Outcome | None]:
        """Whether the work is done, and the outcome of an utterance. hops_wait: when the step was chosen."""
        began_s = self._clock()
        outcome: Outcome | None = None
        if isinstance(work, OfflineJob):
            outcome = work.step(self._renderer)
            is_done = outcome is not None
            outcome = self._marking.utterance(outcome, work.audio) if outcome is not None else None
        else:
            rendering = work.session.rendering
            assert rendering is not None
            self._renderer.prepare(rendering)
            is_done = not rendering.needs_preparation
        self.share.step_took(self._clock() - began_s, hops_wait)
        return is_done, outcome


def _renderer_hop(job: HopJob) -> RendererHop:
    assert job.session.rendering is not None
    return RendererHop(job.session.rendering, job.hop.token_ids, job.hop.finalize, job.hop.lookahead_tokens, job.hop.speed)
