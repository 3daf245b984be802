"""One replica of the fleet simulation. Who computes when is decided by the server's own code; how long it takes was measured on one H200.

A start waits for the orchestrator, which takes one at a time; then the language model makes the first tokens; then token2wav computes
hops of many sessions in batches (``hops/batch_rules.py``), and those without urgent hops give way to them after a step of the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks._fleet_policies import AdmissionRule
from benchmarks._fleet_session import TOKEN_S, Session
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.hops.batch_rules import FIRST_TOKENS_PER_S, LONG_BATCH_S, MAX_BATCH_HOPS, BatchRules, BatchStanding, StepDecision
from bistream.hops.queue import BatchPace, HopQueue, QueuedHop
from bistream.sessions.load import LoadControl
from bistream.token2wav.capacity import CapacityMeter
from bistream.token2wav.load_report import LoadReport

STEPS = 10  # of the solver, in a batch
VOCODER_SHARE = 0.06  # of a batch, after its last solver step
STEP_LOOK_S = 0.05e-3  # waiting for the device and deciding, after each step of a batch that may be interrupted; assumed
Points = tuple[tuple[float, float], ...]
SETTINGS = RuntimeConfig()  # the defaults


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear between the points, constant before the first and beyond the last."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]


@dataclass(frozen=True)
class ServiceTimes:
    """Seconds. The defaults are of one H200, tier kernels, full-size random weights, with the language model beside token2wav.

    All from benchmarks/results/first-audio-bursts-h200.json, closed loops of short texts by their callers, but for batch_s:
    way_s: first audio at the client less that in the server, one caller.
    start_s: one start at the server's door. 256 callers who began at once waited 0.32 s longer than the server saw, at 99 % of 1024.
    first_tokens_s, transit_s: mean stages ``voice`` and ``tokens``, ``send`` and ``hop.between_processes``.
    step_s: a step of the language model: 17 of them are the mean stage ``tokens.first_hop_tokens``. After a step for which nobody waits, it
    pauses for ``idle_pause`` steps, so the tokens of later hops come that much more slowly.
    batch_s: a batch of token2wav by its chunks of 25 tokens: the stage ``hop.hop_compute`` alone; 52 ms with 20 hops and 95 with 64 beside
    the language model (docs/log/gpu.md); beyond that at the pace of the last two.
    context: what a chunk counts by the seconds of speech before it (64 hops: 65 ms after 2 s, 115 after 20, 78 after 10,
    benchmarks/results/token2wav-h200.json). first_hop_chunks: what a first hop counts (66 over 78 ms for 64, there).
    """

    way_s: float = 0.0051
    start_s: float = 0.32 / 256
    first_tokens_s: Points = ((1, 0.0133), (16, 0.0304), (64, 0.0651), (128, 0.0957), (256, 0.1199))
    step_s: Points = ((1, 0.00035), (16, 0.00086), (64, 0.00207), (128, 0.00323), (256, 0.00429))
    transit_s: Points = ((1, 0.0037), (16, 0.0074), (64, 0.0146), (128, 0.0289), (256, 0.0372))
    batch_s: Points = ((1, 0.0146), (20, 0.052), (64, 0.095), (256, 0.283))
    context: Points = ((2, 0.83), (10, 1.0), (20, 1.46))
    first_hop_chunks: float = 0.84

    def later_token(self, sessions: int) -> float:
        return (1.0 + SETTINGS.idle_pause) * interpolate(self.step_s, sessions)

    def batch(self, hops: Sequence[tuple[Session, int]]) -> float:
        return interpolate(self.batch_s, sum(self.chunks(session, tokens) for session, tokens in hops))

    def chunks(self, session: Session, tokens: int) -> float:
        if session.sent == 0:
            return self.first_hop_chunks
        return session.computed_chunks(tokens) * interpolate(self.context, session.sent * TOKEN_S)


@dataclass
class Batch:
    """began_s, seconds: of all that is computed for it. leftover: hops were ready that did not fit."""

    hops: list[QueuedHop[Session]]
    seconds: float
    began_s: float
    standing: BatchStanding
    leftover: bool

    @property
    def tokens(self) -> int:
        return sum(hop.tokens for hop in self.hops)


@dataclass
class Replica:
    """is_up: it answers. accepts: it takes new sessions. life: counts its restarts; events of an earlier life are void.

    slowness: factor of all its service times.
    """

    number: int
    slowness: float = 1.0
    admission: AdmissionRule = AdmissionRule(load_target=0.0)
    is_up: bool = True
    accepts: bool = True
    life: int = 0
    is_computing: bool = False
    live: set[Session] = field(default_factory=set)
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        self._begin_life()

    def _begin_life(self) -> None:
        self.live.clear()
        self.start_free_at_s = 0.0
        self.queue: HopQueue[Session] = HopQueue()
        self.started: Batch | None = None
        self.is_computing = False
        self._turns = BatchRules(BatchPace(FIRST_TOKENS_PER_S), SETTINGS.max_suspensions)
        self._went_first: list[Batch] = []
        self._capacity = CapacityMeter(LONG_BATCH_S, MAX_BATCH_HOPS, self.admission.capacity)
        needs = lambda: (session.need(self._now_s) for session in self.live)  # noqa: E731
        self._load = LoadControl(self.admission.load_target, self._report, needs, lambda: self._now_s)

    def _report(self) -> LoadReport:
        return LoadReport(self._capacity.audio_s_per_s)

    @property
    def capacity(self) -> float:
        """Audio seconds per second, as the replica has measured it; 0: not yet."""
        return self._capacity.audio_s_per_s

    def admits(self, session: Session, now_s: float) -> bool:
        if not self.admission.has_place(len(self.live)):
            return False
        self._now_s = now_s
        session.begun_at_s = now_s
        try:
            self._load.admit(session.need(now_s))
        except BusyError:
            return False
        return True

    def begin(self, session: Session, now_s: float, times: ServiceTimes) -> None:
        """Take a session; its first tokens are ready at ``session.ready_at_s``."""
        self.live.add(session)
        self.start_free_at_s = max(now_s, self.start_free_at_s) + self.slowness * times.start_s
        session.begun_at_s = self.start_free_at_s + times.way_s
        session.first_tokens_s = self.slowness * interpolate(times.first_tokens_s, len(self.live))

    def ready_at_s(self, session: Session, tokens: int, times: ServiceTimes, speech_per_text_s: float) -> float:
        """When the tokens of the session's next hop are there."""
        return session.ready_at_s(tokens, self.slowness * times.later_token(len(self.live)), speech_per_text_s)

    def push(self, session: Session, tokens: int, now_s: float) -> None:
        """A hop of a session is ready."""
        session.has_hop = True
        is_first = session.sent == 0
        if is_first:
            self._turns.arrivals.came(now_s)
        deadline_s = now_s if is_first else max(now_s, session.audio_ends_at_s)
        self.queue.push(session, is_first=is_first, deadline_s=deadline_s, tokens=tokens)

    def work(self, now_s: float, times: ServiceTimes) -> tuple[float, Batch | None] | None:
        """What token2wav does next: seconds, and the batch that is done after them, if one is. None: nothing waits."""
        if self.started is not None:
            if self._turns.after_step(self.started.standing, self.queue, now_s) is not StepDecision.SUSPEND:
                return self._step(self.started)
            self.started.standing.suspensions += 1
        hops = self._turns.next_batch(self.queue, now_s)
        if not hops:
            return None
        seconds = self.slowness * times.batch([(hop.item, hop.tokens) for hop in hops])
        batch = Batch(hops, seconds, now_s, BatchStanding.of(hops, STEPS), len(self.queue) > 0)
        if self.started is None and self._turns.may_be_interrupted(batch.standing, now_s):
            self.started = batch
            return self._step(batch)
        return seconds, batch

    def _step(self, batch: Batch) -> tuple[float, Batch | None]:
        batch.standing.steps_left -= 1
        seconds = batch.seconds * (1.0 - VOCODER_SHARE) / STEPS + STEP_LOOK_S
        if batch.standing.steps_left:
            return seconds, None
        self.started = None
        return seconds + batch.seconds * VOCODER_SHARE, batch

    def done(self, batch: Batch, now_s: float) -> None:
        """A batch is done: what the server learns from it, as ``token2wav/computing.py`` does."""
        self._turns.pace.observe(batch.tokens, batch.seconds)
        self._went_first.append(batch)
        if self.started is None:
            counted, self._went_first = self._went_first, []
            hops, audio_s = sum(len(each.hops) for each in counted), TOKEN_S * sum(each.tokens for each in counted)
            self._capacity.observe(audio_s, hops, batch.began_s, now_s, batch.leftover)

    def end(self) -> list[Session]:
        """It dies or is replaced: returns the sessions that are lost."""
        lost = sorted(self.live, key=lambda session: session.caller)
        self.is_up = self.accepts = False
        self.life += 1
        self._begin_life()
        return lost

    def come_back(self) -> None:
        self.is_up = self.accepts = True
