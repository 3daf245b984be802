"""Closed-loop callers on a simulated server with a clock of its own: for ``benchmarks/deadlines.py`` and tests.

The decisions are the real ones (scheduler of the language model, hop policy, queue and turns of token2wav); what takes time are the service
times that were measured on one H200 (docs/log.md). Language model and token2wav do not slow each other down, as on two GPUs
(``_deadline_shared``: on one); messages take ``WAY_S`` each way; the orchestrator's own time is not modelled.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks._deadline_callers import (
    LM_ROW_S,
    LM_STEP_S,
    POLICY,
    PROMPT_IDS,
    STEP_LOOK_S,
    STEPS,
    TOKEN_S,
    VOCODER_SHARE,
    WAY_S,
    Caller,
    Hop,
    batch_seconds,
)
from benchmarks._deadline_policies import WholeBatches
from bistream.orchestration.hop_policy import HopPolicy
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import StepPlan
from bistream.text2token.urgency import Demand
from bistream.token2wav.hop_queue import HopQueue, QueuedHop
from bistream.token2wav.turns import BatchStanding, StepDecision, Turns


@dataclass
class Batch:
    hops: list[QueuedHop[Hop]]
    seconds: float  # of all steps
    standing: BatchStanding
    took_s: float = 0.0  # so far, where that is not known before


@dataclass
class Results:
    """Seconds, after the warm-up."""

    first_audio: list[float] = field(default_factory=list)
    first_waits: list[float] = field(default_factory=list)  # of first hops, until their batch begins
    token_waits: list[float] = field(default_factory=list)  # from the start to the tokens of the first hop
    late: list[float] = field(default_factory=list)  # of later hops: how late their audio was
    audio_s: float = 0.0
    decisions: dict[StepDecision, int] = field(default_factory=dict)
    most_suspended_s: float = 0.0


class Load:
    """``callers`` in a closed loop: each starts again as soon as its last audio has been made."""

    def __init__(
        self,
        callers: int,
        turns: Turns,
        tokens: tuple[int, int] = (130, 150),
        seed: int = 0,
        names_slack: bool = True,
        policy: HopPolicy = POLICY,
        seconds: Callable[[Sequence[Hop]], float] = batch_seconds,
        chunks_join: bool = False,
    ) -> None:
        """tokens: of a session, shortest and longest. names_slack: pulls of tokens say how urgent they are. seconds: of a batch.
        chunks_join: as of ``HopProgress``."""
        self._seconds, self._chunks_join = seconds, chunks_join
        self._policy = policy
        self.turns = turns
        self.results = Results()
        self._chance = random.Random(seed)
        self._tokens = tokens
        self._names_slack = names_slack
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._queue: HopQueue[Hop] = HopQueue()
        self._started: Batch | None = None
        self._suspended_s = 0.0
        self._is_computing = False
        settings = EngineSettings(max_sessions=2 * callers, max_rows=256, kv_cache_tokens=2 * callers * 512)
        self._scheduler = Scheduler(settings, TokenSpace(1000, 100))
        self._lm_is_computing = False
        self._warm_s = 0.0
        for index in range(callers):
            self._at(self._chance.uniform(0.0, 1.0), lambda index=index: self._start(index))  # type: ignore[misc]

    def run(self, warm_s: float, measured_s: float) -> Results:
        self._warm_s = warm_s
        while self._events[0][0] < warm_s + measured_s:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return self.results

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), action))

    @property
    def _counts(self) -> bool:
        return self._now >= self._warm_s

    # The language model

    def _start(self, index: int) -> None:
        number = next(self._numbers)
        caller = Caller(f"{index}-{number}", self._now, self._chance.randint(*self._tokens), self._chunks_join)
        caller.look_at_tokens = self._policy.wanted_tokens(caller.progress(self._now))
        self._at(self._now + WAY_S, lambda: self._begin_turn(caller))

    def _begin_turn(self, caller: Caller) -> None:
        caller.sequence = self._scheduler.open(caller.name, SamplingSpec(), PROMPT_IDS + caller.total + 2)
        ids = [self._chance.randrange(1000) for _ in range(PROMPT_IDS)]
        self._scheduler.begin_turn(caller.sequence, ids, TurnLimits(caller.total), _Sink(self, caller))
        self._demand(caller)
        self._lm_step()

    def _demand(self, caller: Caller) -> None:
        """The pull for the next tokens, which names the audio that the listener has, in chunks and in tokens."""
        sequence = caller.sequence
        if self._names_slack and sequence is not None and sequence.turn is not None:
            played_s = caller.audible(caller.sent) * TOKEN_S - max(0.0, caller.plays_until_s - self._now)
            slack_s = max(0.0, caller.received * TOKEN_S - max(0.0, played_s))
            wanted = max(1, caller.look_at_tokens - caller.received)
            self._scheduler.demand(sequence, Demand.of(slack_s, wanted, self._now))

    def _lm_step(self) -> None:
        if self._lm_is_computing or (plan := self._scheduler.schedule(self._now)) is None:
            return
        self._lm_is_computing = True

        def done() -> None:
            self._lm_is_computing = False
            self._apply(plan)
            self._lm_step()

        self._at(self._now + LM_STEP_S + LM_ROW_S * plan.num_rows, done)

    def _apply(self, plan: StepPlan) -> None:
        for update in self._scheduler.apply(plan, [1] * len(plan.sampling)):
            if update.ids:
                update.sink.on_ids(update.ids)
            if update.result is not None:
                update.sink.on_end(update.result)

    def tokens_came(self, caller: Caller, count: int) -> None:
        caller.received += count
        if caller.received >= caller.look_at_tokens or caller.received == caller.total:
            self._at(self._now + WAY_S, lambda: self._consider(caller))
            self._at(self._now + WAY_S, lambda: self._demand(caller))

    def turn_ended(self, caller: Caller) -> None:
        assert caller.sequence is not None
        self._scheduler.close(caller.sequence)

    # The orchestrator

    def _consider(self, caller: Caller) -> None:
        if caller.is_waiting or caller.sent == caller.total:
            return
        progress = caller.progress(self._now)
        count = self._policy.next_hop(progress)
        if count is None:
            caller.look_at_tokens = caller.received + self._policy.wanted_tokens(progress)
            again_s = self._policy.recheck_after_s(progress)
            if again_s is not None:
                self._at(self._now + max(0.001, again_s), lambda: self._consider(caller))
            return
        caller.is_waiting, caller.asked_s = True, self._now
        self._at(self._now + WAY_S, lambda: self._hop_came(Hop(caller, count, self._now)))

    # token2wav

    def _hop_came(self, hop: Hop) -> None:
        caller, is_first = hop.caller, hop.caller.sent == 0
        if is_first:
            self.turns.arrivals.came(self._now)
            if self._counts:
                self.results.token_waits.append(self._now - caller.began_s)
        deadline_s = self._now if is_first else max(self._now, caller.plays_until_s)
        self._queue.push(hop, is_first=is_first, deadline_s=deadline_s, tokens=hop.count)
        if not self._is_computing:
            self._work()

    def _work(self) -> None:
        """As ``token2wav.service`` does after each step and batch."""
        self._is_computing = False
        if self._started is not None:
            decision = self.turns.after_step(self._started.standing, self._queue, self._now)
            self.results.decisions[decision] = self.results.decisions.get(decision, 0) + 1
            if decision is not StepDecision.SUSPEND:
                self._step(self._started)
                return
            self._started.standing.suspensions += 1
        hops = self.turns.next_batch(self._queue, self._now)
        if not hops:
            return
        batch = Batch(hops, self._seconds([hop.item for hop in hops]), BatchStanding.of(hops, STEPS))
        if self._counts:
            self.results.first_waits += [self._now - hop.item.arrived_s for hop in hops if hop.is_first]
        self._is_computing = True
        if self._started is None and self.turns.may_be_interrupted(batch.standing, self._now):
            self._started, self._suspended_s = batch, 0.0
            self._step(batch)
        else:
            if self._started is not None:
                self._suspended_s += batch.seconds
                self.results.most_suspended_s = max(self.results.most_suspended_s, self._suspended_s)
            self._compute(batch)

    def _compute(self, batch: Batch) -> None:
        """All of it."""
        self._at(self._now + batch.seconds, lambda: self._done(batch))

    def _step(self, batch: Batch) -> None:
        self._is_computing = True
        batch.standing.steps_left -= 1
        seconds = batch.seconds * (1.0 - VOCODER_SHARE) / STEPS + STEP_LOOK_S
        if batch.standing.steps_left:
            self._at(self._now + seconds, self._work)
            return

        def ended() -> None:
            self._started = None
            self._done(batch)

        self._at(self._now + seconds + batch.seconds * VOCODER_SHARE, ended)

    def _done(self, batch: Batch) -> None:
        hops = [hop.item for hop in batch.hops]
        if isinstance(self.turns, WholeBatches):
            self.turns.observed(sum(hop.count for hop in hops), batch.seconds)
        self.turns.pace.observe(sum(hop.count for hop in hops), batch.seconds)
        for hop in hops:
            self._at(self._now + WAY_S, lambda hop=hop: self._audio_came(hop))  # type: ignore[misc]
        self._work()

    def _audio_came(self, hop: Hop) -> None:
        caller = hop.caller
        seconds = (caller.audible(caller.sent + hop.count) - caller.audible(caller.sent)) * TOKEN_S
        if caller.first_audio_s is None:
            caller.first_audio_s = caller.plays_until_s = self._now
            if self._counts:
                self.results.first_audio.append(self._now - caller.began_s)
        elif self._counts:
            self.results.late.append(max(0.0, self._now - caller.plays_until_s))
        caller.plays_until_s = max(caller.plays_until_s, self._now) + seconds
        caller.sent, caller.is_waiting, caller.latency_s = caller.sent + hop.count, False, self._now - caller.asked_s
        if self._counts:
            self.results.audio_s += seconds
        if caller.sent == caller.total:
            self._start(int(caller.name.split("-")[0]))
        else:
            self._consider(caller)


@dataclass
class _Sink:
    load: Load
    caller: Caller

    def on_ids(self, ids: Sequence[int]) -> None:
        self.load.tokens_came(self.caller, len(ids))

    def on_end(self, result: TurnResult) -> None:
        self.load.turn_ended(self.caller)
