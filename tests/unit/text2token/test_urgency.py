"""Which sequences a step is for: each decision, and simulated listeners under a clock of their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import SequenceRecord
from bistream.text2token.urgency import AMPLE_S, BURST_S, FULL_STEPS, NEARLY_SILENT_S, SHORT_ROWS, Demand, StepShares, Urgency, urgency_of
from tests.fakes import RecordingSink

NOW_S, MOST_S = 50.0, 60.0
SPACE = TokenSpace(text_vocab_size=100, speech_token_size=50)
TOKEN_S = 1 / SPACE.tokens_per_second

demands = st.none() | st.builds(
    Demand, silent_at_s=st.floats(NOW_S - 5.0, NOW_S + 2 * MOST_S), lacks=st.integers(-100, 20), is_held=st.booleans()
)


@given(demands)
def test_urgency_falls_with_the_audio_that_is_left(demand: Demand | None) -> None:
    found = urgency_of(demand, NOW_S, MOST_S)
    if demand is None:
        assert found is Urgency.NEAR
        return
    slack_s = demand.silent_at_s - NOW_S
    bounds = {
        Urgency.WAITING: demand.lacks > 0 or slack_s < NEARLY_SILENT_S,
        Urgency.NEAR: slack_s < AMPLE_S,
        Urgency.AHEAD: slack_s <= (MOST_S - BURST_S if demand.is_held else MOST_S),
        Urgency.HELD: True,
    }
    assert found is next(urgency for urgency, applies in bounds.items() if applies)
    assert urgency_of(demand, NOW_S + 1.0, MOST_S) <= found, "with time it becomes more urgent"


@given(st.lists(demands, max_size=4))
def test_it_is_calm_where_nobody_waits_and_everybody_has_said_so(some: list[Demand | None]) -> None:
    waits = [demand is None or urgency_of(demand, NOW_S, MOST_S) is Urgency.WAITING for demand in some]
    assert StepShares(MOST_S).is_idle(some, NOW_S) == (not any(waits))


@given(st.floats(0.0, 100.0), st.integers(-5, 30), st.integers(0, 100))
def test_sampled_tokens_are_audio(slack_s: float, wanted: int, sampled: int) -> None:
    demand = Demand.of(slack_s, wanted, NOW_S)
    for _ in range(sampled + 3):
        demand.sampled(TOKEN_S)
    demand.sampled(TOKEN_S, -3)
    assert demand.silent_at_s == pytest.approx(NOW_S + slack_s + sampled * TOKEN_S)
    assert (demand.lacks > 0) == (slack_s < NEARLY_SILENT_S and wanted > sampled)


@given(st.lists(demands, max_size=150), st.booleans(), st.integers(1, 8))
def test_a_step_leaves_out_only_those_who_can_wait_and_not_for_long(found: list[Demand | None], has_new: bool, steps: int) -> None:
    shares = StepShares(MOST_S)
    by_number = {number: urgency_of(demand, NOW_S, MOST_S) for number, demand in enumerate(found)}
    able = {number for number, urgency in by_number.items() if urgency is not Urgency.HELD}
    waiting = {number for number in able if by_number[number] is Urgency.WAITING}
    full = 0
    for step in range(steps):
        chosen, is_short = shares.choose(list(enumerate(found)), has_new, NOW_S)
        assert len(set(chosen)) == len(chosen) and waiting <= set(chosen) <= able
        ranks = [by_number[number] for number in chosen]
        assert ranks == sorted(ranks)
        if is_short:
            assert (waiting or has_new) and len(chosen) <= max(SHORT_ROWS, len(waiting)) and set(chosen) < able
            assert Urgency.AHEAD not in ranks
        else:
            assert set(chosen) == able
            full = step + 1
        assert step + 1 - full < FULL_STEPS


def scheduler_with(count: int, max_ahead_s: float = MOST_S, max_rows: int = 256) -> tuple[Scheduler, list[SequenceRecord]]:
    """Sequences that decode, of 400 tokens each."""
    settings_ = EngineSettings(count + 1, max_rows, (count + 1) * 512, max_ahead_s=max_ahead_s)
    scheduler, sequences = Scheduler(settings_, SPACE), []
    for index in range(count):
        sequences.append(scheduler.open(f"s{index}", SamplingSpec(), 410))
        scheduler.begin_turn(sequences[-1], [index % 100], TurnLimits(400), RecordingSink())
    while any(sequence.turn is not None and not sequence.turn.num_sampled for sequence in sequences):
        step(scheduler, 0.0)
    return scheduler, sequences


def step(scheduler: Scheduler, now_s: float) -> int:
    """Rows of a step; 0: there was none."""
    plan = scheduler.schedule(now_s)
    if plan is None:
        return 0
    scheduler.apply(plan, [1] * len(plan.sampling))
    return plan.num_rows


def test_a_new_session_gets_its_first_hop_in_short_steps_and_nobody_is_left_behind() -> None:
    scheduler, old = scheduler_with(150)
    for sequence in old:
        scheduler.demand(sequence, Demand.of(10.0, 25, 0.0))
    before = [sequence.num_ids for sequence in old]
    new = scheduler.open("new", SamplingSpec(), 410)
    scheduler.begin_turn(new, [7, 8, 9], TurnLimits(400), RecordingSink())
    scheduler.demand(new, Demand.of(0.0, 18, 0.0))
    rows = []
    while new.turn is not None and new.turn.num_new < 18:
        rows.append(step(scheduler, 0.0))
        scheduler.check_integrity()
    assert len(rows) == 18
    assert sum(count > SHORT_ROWS for count in rows) <= len(rows) // FULL_STEPS + 1
    grown = {sequence.num_ids - number for sequence, number in zip(old, before, strict=True)}
    assert min(grown) >= len(rows) // FULL_STEPS and max(grown) - min(grown) <= 1
    assert step(scheduler, 0.0) > SHORT_ROWS, "it has its tokens: everybody goes on"


def test_run_ahead_stops_at_the_bound_and_goes_on_in_bursts() -> None:
    scheduler, (sequence,) = scheduler_with(1, max_ahead_s=12.0)
    scheduler.demand(sequence, Demand.of(11.0, 25, 0.0))
    steps, now = 0, 0.0
    while step(scheduler, now):
        steps += 1
    assert steps in (25, 26)  # from 11 s to 12, or just beyond
    for _ in range(3):
        assert not scheduler.has_work(now) and scheduler.schedule(now) is None
        wake_s = scheduler.wake_after_s(now)
        assert wake_s is not None and wake_s == pytest.approx(BURST_S, abs=0.05)
        scheduler.demand(sequence, Demand(sequence.demand.silent_at_s if sequence.demand else 0.0))  # another pull changes nothing
        assert not scheduler.has_work(now + wake_s - 0.01)
        now += wake_s + 1e-6
        steps = 0
        while step(scheduler, now):
            steps += 1
        assert steps == pytest.approx(BURST_S / TOKEN_S, abs=1)


@settings(max_examples=8)
@given(st.lists(st.tuples(st.floats(0.0, 8.0), st.integers(0, 30)), min_size=1, max_size=40), st.integers(8, 64))
def test_listeners_never_run_out_below_capacity(sessions: list[tuple[float, int]], max_rows: int) -> None:
    """Listeners begin with their first 18 tokens and play on; pulls come now and then. Every session ends, in time for its listener."""
    scheduler, sequences = scheduler_with(len(sessions), max_ahead_s=5.0, max_rows=max_rows)
    now, plays_from = 0.0, dict[int, float]()
    left = dict(enumerate(sequences))
    while left:
        for number, sequence in list(left.items()):
            made = sequence.num_ids - 1
            if sequence.turn is None:
                del left[number]
            elif number not in plays_from and made >= 18:
                plays_from[number] = now
            if number in plays_from:
                assert made * TOKEN_S > now - plays_from[number] or sequence.turn is None, "a listener heard a gap"
            if number in left and sessions[number][1] and int(now * 1000) % (sessions[number][1] + 1) == 0:
                played_s = now - plays_from.get(number, now)
                scheduler.demand(sequence, Demand.of(max(0.0, made * TOKEN_S - played_s), 18 if number not in plays_from else 25, now))
        wake_s = scheduler.wake_after_s(now)
        if not step(scheduler, now):
            assert wake_s is not None or not left
            now += max(0.001, wake_s or 0.0)
        now += 0.001
        assert now < 60.0, "a session never ended"
