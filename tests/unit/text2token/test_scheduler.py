"""Scheduler: order of rows, fairness, admission, and random sessions on a fake model step."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bistream.errors import BusyError, ConfigError
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import INACTIVE, NOT_FINITE, SequenceRecord, StepPlan, TurnUpdate
from tests.fakes import RecordingSink

SPACE = TokenSpace(text_vocab_size=100, speech_token_size=50)
EOS, FILL = SPACE.speech_token_size, SPACE.speech_token_size + 2  # as head rows


def make(max_rows: int = 16, max_sessions: int = 8, num_blocks: int = 64, block_size: int = 4) -> Scheduler:
    return Scheduler(EngineSettings(max_sessions, max_rows, num_blocks * block_size, block_size), SPACE)


def start(scheduler: Scheduler, name: str, num_ids: int, max_new: int = 20, first: int = 0) -> tuple[SequenceRecord, RecordingSink]:
    sequence, sink = scheduler.open(name, SamplingSpec(), num_ids + max_new), RecordingSink()
    scheduler.begin_turn(sequence, [(first + index) % 100 for index in range(num_ids)], TurnLimits(max_new), sink)
    return sequence, sink


def deliver(updates: list[TurnUpdate]) -> None:
    for update in updates:
        if update.ids:
            update.sink.on_ids(update.ids)
        if update.result is not None:
            update.sink.on_end(update.result)


def step(scheduler: Scheduler, head_row: int = 1) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    deliver(scheduler.apply(plan, [head_row] * len(plan.sampling)))
    scheduler.check_integrity()
    return plan


def test_a_long_prompt_delays_running_sessions_by_at_most_one_chunk() -> None:
    """Fake clock: a step costs 1 ms and 0.1 ms per row. No running session waits longer for its next id than one full step."""
    scheduler = make(max_rows=32, max_sessions=8, num_blocks=512)
    running = [start(scheduler, f"r{index}", 5, max_new=60, first=10 * index)[1] for index in range(4)]
    step(scheduler)
    now, last = 0.0, dict.fromkeys(range(4), 0.0)
    worst, arrived = 0.0, {}
    for tick in range(40):
        if tick in (3, 4, 10):
            start(scheduler, f"long{tick}", 300, first=tick)
        before = [len(sink.ids) for sink in running]
        plan = step(scheduler)
        now += 1.0 + 0.1 * plan.num_rows
        for index, sink in enumerate(running):
            assert len(sink.ids) == before[index] + 1, "a running session gets an id in every step"
            worst, last[index] = max(worst, now - last[index]), now
        arrived[tick] = plan.num_rows
    assert worst <= 1.0 + 0.1 * 32 + 1e-9
    assert max(arrived.values()) == 32, "the long prompts did fill the steps"


def test_appended_text_goes_before_new_prompts() -> None:
    scheduler = make(max_rows=16)
    sequence = scheduler.open("speaking", SamplingSpec(), 60)
    scheduler.begin_turn(sequence, [1, 2, 3], TurnLimits(1), RecordingSink())
    step(scheduler)
    start(scheduler, "long", 100, first=50)
    sink = RecordingSink()
    scheduler.begin_turn(sequence, [4, 5, 6, 7, 8], TurnLimits(5), sink)
    plan = step(scheduler)
    assert [segment.num_rows for segment in plan.segments] == [6, 10]
    assert len(sink.ids) == 1


def test_decoding_cannot_starve_prompts_and_appends() -> None:
    """More decoding sessions than rows: they take turns, and feeding still gets a quarter of the rows."""
    scheduler = make(max_rows=8, max_sessions=32, num_blocks=2048)
    sinks = [start(scheduler, f"r{index}", 2, max_new=200, first=3 * index)[1] for index in range(20)]
    while any(not sink.ids for sink in sinks):
        step(scheduler)
    _, late = start(scheduler, "late", 40, first=77)
    served: Counter[int] = Counter()
    steps = 0
    while not late.ids:
        steps += 1
        served.update(segment.slot for segment in step(scheduler).segments if segment.ids is None)
    assert steps <= 20
    assert len(served) == 20 and max(served.values()) - min(served.values()) <= 1


@pytest.mark.parametrize("decoding", range(9, 16))
def test_new_prompts_cannot_starve_appended_text(decoding: int) -> None:
    """Also where decoding leaves no more than the share that is reserved for feeding."""
    scheduler = make(max_rows=16, max_sessions=32, num_blocks=2048)
    appended = scheduler.open("appended", SamplingSpec(), 60)
    scheduler.begin_turn(appended, [1, 2, 3], TurnLimits(1), RecordingSink())
    step(scheduler)
    sinks = [start(scheduler, f"r{index}", 2, max_new=300, first=3 * index)[1] for index in range(decoding)]
    while any(not sink.ids for sink in sinks):
        step(scheduler)
    for index in range(4):
        start(scheduler, f"late{index}", 200, first=100 + index)
    sink = RecordingSink()
    scheduler.begin_turn(appended, [4, 5, 6, 7, 8], TurnLimits(5), sink)
    for _ in range(8):
        step(scheduler)
    assert sink.ids


def test_appended_text_cannot_starve_new_prompts() -> None:
    scheduler = make(max_rows=8)
    sequences = [scheduler.open(f"s{index}", SamplingSpec(), 80) for index in range(2)]
    for sequence in sequences:
        scheduler.begin_turn(sequence, [sequence.slot, 2, 3], TurnLimits(1), RecordingSink())
        step(scheduler)
    for sequence in sequences:
        scheduler.begin_turn(sequence, [4] * 40, TurnLimits(20), RecordingSink())
    _, late = start(scheduler, "late", 10, first=77)
    for _ in range(5):
        assert not late.ids
        assert [segment.num_rows for segment in step(scheduler).segments] == [6, 2]
    assert late.ids


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError):
        EngineSettings(max_sessions=1, max_rows=3, kv_cache_tokens=64)
    with pytest.raises(ConfigError):
        EngineSettings(max_sessions=1, max_rows=4, kv_cache_tokens=8)


class FakeDevice:
    """The step runner's effect on a turn, on integers: it ends turns by itself and answers up to ``run_ahead`` plans late."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.running: dict[int, list[int]] = {}  # slot -> [ids of the turn so far, limit]

    def run(self, plan: StepPlan, max_rows: int, capacity: dict[int, int]) -> list[int]:
        for turn in plan.starts:
            self.running[turn.slot] = [0, turn.max_new_ids]
            if turn.reset is not None:
                capacity[turn.slot] = len(turn.reset.blocks)
        assert 0 < plan.num_rows <= max_rows
        slots = [segment.slot for segment in plan.segments]
        assert len(set(slots)) == len(slots), "one segment per sequence"
        for segment in plan.segments:
            assert segment.position + segment.num_rows <= capacity[segment.slot] * 4
        return [self.sample(segment.slot) for segment in plan.segments if segment.samples]

    def sample(self, slot: int) -> int:
        if slot not in self.running:
            return INACTIVE
        chance = self.rng.random()
        if chance < 0.01:
            del self.running[slot]
            return NOT_FINITE
        if chance < 0.1:
            del self.running[slot]
            return self.rng.choice((EOS, FILL))
        turn = self.running[slot]
        turn[0] += 1
        if turn[0] == turn[1]:
            del self.running[slot]
        return self.rng.randrange(SPACE.speech_token_size)


@pytest.mark.parametrize("run_ahead", [0, 3])
def test_pool_is_consistent_after_each_of_many_random_sessions(run_ahead: int) -> None:
    """Random prompts (often equal ones), turns, cancels at any time, reused session ids, late results."""
    rng = random.Random(run_ahead)
    scheduler = make(max_rows=24, max_sessions=8, num_blocks=40)
    device, capacity = FakeDevice(rng), dict[int, int]()
    in_flight: list[tuple[StepPlan, list[int]]] = []
    sessions: dict[str, tuple[SequenceRecord, RecordingSink, int]] = {}
    closed = refused = 0
    ends: Counter[TurnEnd] = Counter()

    def begin(sequence: SequenceRecord, turns_left: int) -> None:
        common = [rng.randrange(3)] * rng.randrange(1, 14)
        sink = RecordingSink()
        room = sequence.max_ids - sequence.num_ids - 1
        scheduler.begin_turn(sequence, [*common, *(rng.randrange(100) for _ in range(4))][:room], TurnLimits(rng.randrange(1, 12)), sink)
        sessions[sequence.session_id] = (sequence, sink, turns_left)

    while closed < 2000:
        name = f"s{rng.randrange(12)}"
        if name not in sessions:
            try:
                begin(scheduler.open(name, SamplingSpec(), rng.randrange(8, 60)), rng.randrange(3))
            except BusyError:
                refused += 1
        for session_id, (sequence, sink, turns_left) in list(sessions.items()):
            if sink.result is None and rng.random() < 0.98:
                continue
            go_on = sink.result is not None and sink.result.end in (TurnEnd.STOP, TurnEnd.LENGTH) and turns_left > 0
            if go_on and sequence.num_ids + 2 < sequence.max_ids:
                begin(sequence, turns_left - 1)
                continue
            update = scheduler.close(sequence)
            deliver([update] if update else [])
            assert sink.result is not None and not sink.late
            ends[sink.result.end] += 1
            del sessions[session_id]
            closed += 1
            scheduler.check_integrity()
        plan = scheduler.schedule()
        if plan is not None:
            in_flight.append((plan, device.run(plan, 24, capacity)))
        if in_flight and (plan is None or len(in_flight) > run_ahead):
            deliver(scheduler.apply(*in_flight.pop(0)))
    assert min(ends.values()) > 20 and len(ends) == 4 and refused > 50
    for sequence, _, _ in sessions.values():
        scheduler.close(sequence)
    scheduler.check_integrity()
    assert scheduler.pool.num_available == 40
