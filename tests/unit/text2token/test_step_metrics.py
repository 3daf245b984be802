"""What the engine records agrees with what its sessions received; the stages of a first token follow one another."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import SequenceRecord, StepPlan
from bistream.text2token.step_metrics import StepMetrics
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.recorded import sample
from tests.unit.text2token.tiny import SPACE, eager_engine

LIMITS = TurnLimits(6, forbidden=frozenset(SPACE.specials))
BLOCK = 8


def make_engine(recorder: Recorder, max_rows: int) -> TorchEngine:
    settings = EngineSettings(max_sessions=4, max_rows=max_rows, kv_cache_tokens=1024, block_size=BLOCK)
    return eager_engine(settings, threaded=False, recorder=recorder)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_steps_and_first_tokens_are_counted(seed: int) -> None:
    rng, recorder = random.Random(seed), Recorder()
    engine, sinks = make_engine(recorder, max_rows=16), list[RecordingSink]()
    for number in range(4):
        session = engine.open(f"s{number}", SamplingSpec(seed=seed), 64)
        for _ in range(rng.randint(1, 2)):
            sinks.append(RecordingSink())
            session.turn([rng.randrange(20) for _ in range(rng.randint(1, 30))], LIMITS, sinks[-1])
            while engine.step():
                pass
        if rng.random() < 0.5:
            session.close()
    assert sample(recorder, "speech_tokens_total") == sum(len(sink.ids) for sink in sinks)
    for name in ("text", "lm_queue", "first_token"):
        assert sample(recorder, "audio_stage_s_count", stage=name) == 4, "once for each session, not for each turn"
    rows = sample(recorder, "lm_step_rows_sum")
    assert rows >= sum(len(sink.ids) for sink in sinks)
    assert sample(recorder, "lm_step_s_count") == sample(recorder, "lm_step_rows_count") > 0
    engine.close()


def test_gauges_follow_the_sessions() -> None:
    recorder = Recorder()
    engine = make_engine(recorder, max_rows=8)
    sessions = [engine.open(name, SamplingSpec(), 4 * BLOCK) for name in ("one", "other")]
    sessions[0].turn([1, 2], LIMITS, RecordingSink())
    assert (sample(recorder, "kv_blocks", state="used"), sample(recorder, "kv_blocks", state="free")) == (8, 1024 // BLOCK - 8)
    assert (sample(recorder, "lm_sequences", state="running"), sample(recorder, "lm_sequences", state="parked")) == (1, 1)
    assert sample(recorder, "lm_queue_depth") == 1
    engine.step()
    assert sample(recorder, "lm_queue_depth") == 0
    for session in sessions:
        session.close()
    assert (sample(recorder, "kv_blocks", state="used"), sample(recorder, "lm_sequences", state="parked")) == (0, 0)
    engine.close()


class Rehearsal:
    """A scheduler and its metrics without a model: every sampled id is 0."""

    def __init__(self) -> None:
        self.now, self.recorder = 50.0, Recorder()
        self.metrics = StepMetrics(self.recorder, lambda: self.now)
        self.space = TokenSpace(10, 5)
        self.scheduler = Scheduler(EngineSettings(max_sessions=4, max_rows=4, kv_cache_tokens=256, block_size=BLOCK), self.space)

    def open(self, name: str) -> SequenceRecord:
        sequence = self.scheduler.open(name, SamplingSpec(), 32)
        self.metrics.opened(sequence)
        return sequence

    def begin(self, sequence: SequenceRecord, ids: int) -> None:
        self.scheduler.begin_turn(sequence, [1] * ids, TurnLimits(3), RecordingSink())
        self.metrics.turn_begun(sequence)

    def start(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.metrics.step_started(plan)
        return plan

    def finish(self, plan: StepPlan) -> None:
        self.metrics.step_done(len(self.scheduler.apply(plan, [0] * len(plan.sampling))))


@given(st.floats(0.0, 9.0), st.floats(0.0, 9.0), st.floats(0.0, 9.0), st.integers(1, 9))
def test_each_stage_lasts_from_its_mark_to_the_next(text_s: float, queue_s: float, compute_s: float, ids: int) -> None:
    """A prompt longer than a step's rows waits for the first of its rows and ends with the last."""
    rehearsal = Rehearsal()
    sequence = rehearsal.open("s")
    rehearsal.now += text_s
    rehearsal.begin(sequence, ids)
    rehearsal.now += queue_s
    steps = [rehearsal.start() for _ in range(-(-ids // 4))]  # all started before the first one's result is read
    rehearsal.now += compute_s
    for step in steps:
        rehearsal.finish(step)
    expected = {"text": text_s, "lm_queue": queue_s, "first_token": compute_s}
    for name, seconds in expected.items():
        assert sample(rehearsal.recorder, "audio_stage_s_count", stage=name) == 1
        assert sample(rehearsal.recorder, "audio_stage_s_sum", stage=name) == pytest.approx(seconds, abs=1e-9)
