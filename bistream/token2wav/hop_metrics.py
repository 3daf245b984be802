"""What the token2wav service records: batches of hops, waits, answers that came too late, and the memory that sessions occupy.

Called by ``service.py`` on its worker; gauges are read by the exporter's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bistream.hops.batch_rules import StepDecision
from bistream.metrics import catalogue
from bistream.metrics.catalogue import Labels
from bistream.metrics.recorder import Recorder
from bistream.token2wav.hop_jobs import HopJob
from bistream.token2wav.renderer import FLOW_PAGES, VOCODER_SLOTS, PoolUse


class HopMetrics:
    def __init__(
        self,
        recorder: Recorder,
        queued: Callable[[], int],
        pools: Callable[[], Mapping[str, PoolUse]],
        capacity: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """queued: hops that wait now. pools: as ``SpeechRenderer.pools``. capacity: as ``LoadReport``. Read with every snapshot."""
        self._size = recorder.histogram(catalogue.HOP_BATCH_SIZE)
        self._seconds = recorder.histogram(catalogue.HOP_BATCH)
        self._queue = recorder.histogram(catalogue.AUDIO_STAGE, "hop_queue")
        self._compute = recorder.histogram(catalogue.AUDIO_STAGE, "hop_compute")
        self._first = recorder.counter(catalogue.HOPS, "first")
        self._later = recorder.counter(catalogue.HOPS, "later")
        self._late = recorder.counter(catalogue.HOPS_LATE)
        self._decisions = {decision: recorder.counter(catalogue.HOP_DECISIONS, decision.value) for decision in StepDecision}
        recorder.read(catalogue.HOP_QUEUE, lambda: {(): queued()})
        recorder.read(catalogue.CAPACITY, lambda: {(): capacity()})
        recorder.read(catalogue.FLOW_PAGES, lambda: _pages(pools().get(FLOW_PAGES)))
        recorder.read(catalogue.VOCODER_SLOTS, lambda: _labelled(pools().get(VOCODER_SLOTS)))

    def decided(self, decision: StepDecision) -> None:
        """After a step of a batch that may give way."""
        self._decisions[decision].inc()

    def batch(self, jobs: Sequence[HopJob], began_s: float, took_s: float, ended_s: float) -> None:
        """These jobs were computed together; took_s: without the batches that went first."""
        self._size.observe(len(jobs))
        self._seconds.observe(took_s)
        for job in jobs:
            if job.is_first:
                arrived_s = job.deadline_s - job.hop.playback_buffer_s
                self._queue.observe(began_s - arrived_s)
                self._compute.observe(took_s)
                self._first.inc()
            else:
                self._later.inc()
                if ended_s > job.deadline_s:
                    self._late.inc()


def _labelled(use: PoolUse | None) -> dict[Labels, float]:
    if use is None:
        return {}
    return {("used",): use.used, ("free",): use.total - use.used}


def _pages(use: PoolUse | None) -> dict[Labels, float]:
    """What is promised may be pages of cached voices, which are ``used``: nothing is free then."""
    if use is None:
        return {}
    reserved = min(use.promised, use.total - use.used)
    return {("used",): use.used, ("reserved",): reserved, ("free",): use.total - use.used - reserved}
