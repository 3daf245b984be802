"""Which hops make a batch and when it gives way: decisions by themselves, and a simulated worker with the batch times of an H200."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.hops.batch_rules import (
    AMPLE_AUDIO_S,
    FIRST_TOKENS_PER_S,
    LONG_BATCH_S,
    MARGIN_S,
    MAX_BATCH_HOPS,
    MAX_SUSPENSIONS,
    MEDIUM_BATCH_S,
    NEARLY_LATE_S,
    BatchRules,
    BatchStanding,
    StepDecision,
)
from bistream.hops.queue import BatchPace, HopQueue, QueuedHop

FIXED_S, TOKEN_S = 10.5e-3, 0.044e-3  # of a batch: 12 ms for a chunk, 81 for 64
STEPS = 10
NOW_S = 100.0


def made() -> BatchRules:
    """Its pace is known."""
    pace = BatchPace(FIRST_TOKENS_PER_S)
    for tokens in (25, 400, 1600):
        pace.observe(tokens, FIXED_S + TOKEN_S * tokens)
    return BatchRules(pace)


Item = tuple[bool, float, int]  # first, slack of its listener, tokens
hops = st.tuples(st.booleans(), st.floats(0.0, 5.0), st.integers(1, 100))
standings = st.builds(
    BatchStanding,
    has_first=st.booleans(),
    earliest_deadline_s=st.floats(NOW_S - 1.0, NOW_S + 5.0),
    tokens=st.integers(1, 2500),
    steps=st.just(STEPS),
    steps_left=st.integers(1, STEPS),
    suspensions=st.integers(0, 9),
)


def queue_of(items: list[Item]) -> HopQueue[Item]:
    queue: HopQueue[Item] = HopQueue()
    for item in items:
        is_first, slack_s, tokens = item
        queue.push(item, is_first=is_first, deadline_s=NOW_S + (0.0 if is_first else slack_s), tokens=tokens)
    return queue


def is_urgent(hop: QueuedHop[Item], now_s: float = NOW_S) -> bool:
    return hop.is_first or hop.deadline_s <= now_s + NEARLY_LATE_S


@given(st.lists(hops, max_size=90), st.none() | standings)
def test_hops_wait_for_others_only_while_all_their_listeners_have_audio(items: list[Item], standing: BatchStanding | None) -> None:
    turns, queue = made(), queue_of(items)
    waits = turns.may_wait(standing, queue, NOW_S)
    assert len(queue) == len(items), "nothing is taken"
    if not waits:
        return
    assert standing is not None or items, "otherwise there is nothing to compute"
    assert not any(is_urgent(hop) for hop in queue.first(len(queue)))
    assert standing is None or standing.earliest_deadline_s >= NOW_S + NEARLY_LATE_S + MARGIN_S
    assert standing is not None or all(hop.deadline_s >= NOW_S + NEARLY_LATE_S + MARGIN_S for hop in queue.first(len(queue)))
    pressed = sum(hop.deadline_s <= NOW_S + AMPLE_AUDIO_S for hop in queue.first(len(queue)))
    assert pressed <= queue.prefix(MAX_BATCH_HOPS, turns.pace.tokens_within(LONG_BATCH_S)), "a server short of time never waits"


@given(st.lists(hops, max_size=90))
def test_a_batch_is_a_prefix_of_the_queue_within_bounds(items: list[Item]) -> None:
    turns, queue = made(), queue_of(items)
    order = list(queue.first(len(queue)))
    assert order == sorted(order, key=lambda hop: (hop.is_later, hop.deadline_s, hop.arrival))
    batch = turns.next_batch(queue, NOW_S)
    assert batch == order[: len(batch)] and list(queue.first(len(queue))) == order[len(batch) :]
    assert bool(batch) == bool(items) and len(batch) <= MAX_BATCH_HOPS
    tokens, hurry = sum(hop.tokens for hop in batch), any(is_urgent(hop) for hop in order)
    longest = queue_of(items).prefix(MAX_BATCH_HOPS, turns.pace.tokens_within(LONG_BATCH_S))
    pressed = sum(hop.is_first or hop.deadline_s <= NOW_S + AMPLE_AUDIO_S for hop in order)
    if pressed > longest:
        assert len(batch) == longest, "a backlog needs efficient batches"
    elif hurry:
        assert len(batch) == 1 or turns.pace.seconds(tokens) <= MEDIUM_BATCH_S + 1e-6
        assert all(is_urgent(hop) for hop in batch)
        left = [hop for hop in order[len(batch) :] if is_urgent(hop)]
        assert not left or len(batch) == MAX_BATCH_HOPS or turns.pace.seconds(tokens + left[0].tokens) > MEDIUM_BATCH_S
    else:
        assert len(batch) == longest


@given(standings, st.lists(hops, max_size=40))
def test_a_batch_gives_way_only_for_somebody_and_at_nobodys_cost(batch: BatchStanding, items: list[Item]) -> None:
    turns, queue = made(), queue_of(items)
    decision = turns.after_step(batch, queue, NOW_S)
    assert decision is turns.after_step(batch, queue, NOW_S), "it decides from what it is given alone"
    somebody = any(is_urgent(hop) for hop in queue.first(len(queue)))
    assert (decision is StepDecision.NOBODY_WAITS) == (not somebody)
    if decision is not StepDecision.SUSPEND:
        return
    assert not batch.has_first and batch.suspensions < MAX_SUSPENSIONS and batch.steps_left > 1
    first_s = turns.pace.seconds(sum(hop.tokens for hop in turns.next_batch(queue, NOW_S)))
    rest_s = turns.pace.seconds(batch.tokens) * batch.steps_left / batch.steps
    assert NOW_S + first_s + rest_s + MARGIN_S <= batch.earliest_deadline_s


@dataclass
class Worker:
    """Computes as ``service`` and ``schedule`` do, under a clock of its own. hops: (arrival, first, slack, tokens)."""

    turns: BatchRules
    hops: list[tuple[float, bool, float, int]]
    slowness: float = 1.0
    now_s: float = 0.0
    done: dict[int, float] = field(default_factory=dict)  # hop: when
    suspended_s: list[float] = field(default_factory=list)  # of each batch that was interrupted
    batches: list[int] = field(default_factory=list)

    def run(self) -> None:
        coming = sorted(enumerate(self.hops), key=lambda one: -one[1][0])
        queue: HopQueue[int] = HopQueue()
        started: BatchStanding | None = None
        members: list[int] = []
        while coming or len(queue) or started:
            if not len(queue) and started is None:
                self.now_s = max(self.now_s, coming[-1][1][0])
            while coming and coming[-1][1][0] <= self.now_s:
                number, (arrival_s, is_first, slack_s, tokens) = coming.pop()
                queue.push(number, is_first=is_first, deadline_s=arrival_s + (0.0 if is_first else slack_s), tokens=tokens)
            if started is not None and self.turns.after_step(started, queue, self.now_s) is not StepDecision.SUSPEND:
                self._pass(started.tokens, 1 / STEPS)
                started.steps_left -= 1
                if not started.steps_left:
                    self._end(members, started.tokens)
                    started = None
                continue
            batch = self.turns.next_batch(queue, self.now_s)
            self.batches.append(len(batch))
            standing = BatchStanding.of(batch, STEPS)
            if started is None and self.turns.may_be_interrupted(standing, self.now_s):
                started, members = standing, [hop.item for hop in batch]
                self.suspended_s.append(0.0)
                continue
            if started is not None:
                started.suspensions += 1
                self.suspended_s[-1] += self.slowness * (FIXED_S + TOKEN_S * standing.tokens)
                assert started.suspensions <= MAX_SUSPENSIONS
            self._pass(standing.tokens, 1.0)
            self._end([hop.item for hop in batch], standing.tokens)

    def _pass(self, tokens: int, share: float) -> None:
        self.now_s += self.slowness * share * (FIXED_S + TOKEN_S * tokens)

    def _end(self, numbers: list[int], tokens: int) -> None:
        self.turns.pace.observe(tokens, self.slowness * (FIXED_S + TOKEN_S * tokens))
        assert not set(numbers) & set(self.done)
        self.done.update(dict.fromkeys(numbers, self.now_s))

    def late(self, by_s: float = 0.0) -> int:
        """Later hops that were done after their listeners ran out."""
        return sum(not first and self.done[number] > at + slack + by_s for number, (at, first, slack, _) in enumerate(self.hops))

    def first_waits(self) -> list[float]:
        return sorted(self.done[number] - at for number, (at, first, _, _) in enumerate(self.hops) if first)


def offered(chance: random.Random, load: float, seconds: float) -> list[tuple[float, bool, float, int]]:
    """Poisson arrivals of hops that need ``load`` of the worker in batches of 16. A fifth are first ones; the others have 0.3 to 5 s."""
    per_s = load / (FIXED_S / 16 + TOKEN_S * 30)
    hops, now = [], 0.0
    while now < seconds:
        now += chance.expovariate(per_s)
        first = chance.random() < 0.2
        hops.append(
            (now, first, 0.0 if first else chance.uniform(0.3, 5.0), 18 if first else chance.choice((10, 25, 25, 50, 100)) * 2 // 3)
        )
    return hops


@settings(max_examples=12)
@given(load=st.floats(0.1, 0.8), seed=st.integers(0, 1000), slowness=st.floats(0.5, 1.0))
def test_below_capacity_nobody_runs_out_and_no_batch_waits_for_long(load: float, seed: int, slowness: float) -> None:
    worker = Worker(made(), offered(random.Random(seed), load, 6.0), slowness)
    worker.run()
    assert len(worker.done) == len(worker.hops)
    assert worker.late() == 0
    assert max(worker.suspended_s, default=0.0) <= MAX_SUSPENSIONS * (LONG_BATCH_S + 0.01)
    assert worker.first_waits()[-1] < 2 * LONG_BATCH_S


@settings(max_examples=6)
@given(seed=st.integers(0, 1000))
def test_a_flood_of_first_hops_ends_no_batch(seed: int) -> None:
    """Mostly first hops, as many in 2 s as take the worker 3: each hop gets its turn, and no batch is held up for long."""
    chance = random.Random(seed)
    flood = [(chance.uniform(0.0, 2.0), True, 0.0, 18) for _ in range(2000)]
    calm = [(chance.uniform(0.0, 2.0), False, chance.uniform(1.0, 3.0), 25) for _ in range(100)]
    worker = Worker(made(), flood + calm)
    worker.run()
    assert len(worker.done) == 2100
    assert max(worker.suspended_s, default=0.0) <= MAX_SUSPENSIONS * (LONG_BATCH_S + 0.01)
