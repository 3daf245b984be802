"""The runner of recorded steps on the CPU, where the plain form of its kernels computes them in float32, against the plain model."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.runner import BLOCK_SIZE, GraphStepRunner
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights, build_weights
from tests.fakes import RecordingSink
from tests.plain_step import PlainKernels
from tests.unit.text2token.engine_conformance import GREEDY, NO_STOP, Bench, EngineConformance, FaultyRunner, stepped_bench
from tests.unit.text2token.tiny import CONFIG, SPACE, random_state, tiny_model

CPU = torch.device("cpu")
UNEVEN = dataclasses.replace(CONFIG, hidden_size=96, num_attention_heads=6)
SMALL = EngineSettings(max_sessions=5, max_rows=24, kv_cache_tokens=15 * BLOCK_SIZE, block_size=BLOCK_SIZE, max_sequence_ids=300)
SETTINGS = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=1024, block_size=BLOCK_SIZE, max_sequence_ids=512)
LIMITS = TurnLimits(1000, forbidden=frozenset(SPACE.specials))


def weights_of(config: LanguageModelConfig) -> ModelWeights:
    return tiny_model().weights if config is CONFIG else build_weights(random_state(config), config, CPU, torch.float32)


def make_runner(config: LanguageModelConfig = CONFIG, settings: EngineSettings = SMALL) -> GraphStepRunner:
    return GraphStepRunner(config, fold_weights(weights_of(config), config, CPU, torch.float32), settings, make_kernels=PlainKernels)


class Talk:
    """Sequences of known ids, fed in random pieces; scores are compared with the dense forward pass."""

    def __init__(self, runner: GraphStepRunner, model: Qwen2Model, rng: random.Random) -> None:
        self.runner, self.rng = runner, rng
        self.ids = [[rng.randrange(SPACE.size) for _ in range(rng.randrange(1, 130))] for _ in range(4)]
        blocks = rng.sample(range(15), 12)
        self.blocks = [tuple(blocks[slot * 3 : slot * 3 + 3]) for slot in range(4)]
        self.fed = [0] * 4
        with torch.inference_mode():
            self.expected = [model.logits(model.forward_dense(torch.tensor(ids))) for ids in self.ids]

    def starts(self, slots: Sequence[int]) -> tuple[TurnStart, ...]:
        return tuple(TurnStart(slot, LIMITS, 1000, SlotReset(str(slot), SamplingSpec(), self.blocks[slot])) for slot in slots)

    def plan(self) -> StepPlan:
        room = self.rng.randrange(1, 25)
        segments, starts = [], []
        for slot in self.rng.sample(range(4), 4):
            ids = self.ids[slot][self.fed[slot] :]
            count = min(len(ids), room, self.rng.choice((1, 1, 2, 9, 24)))
            if count:
                segments.append(Segment(slot, self.fed[slot], tuple(ids[:count]), self.rng.random() < 0.5))
                starts += [slot] if not self.fed[slot] else []
                self.fed[slot] += count
                room -= count
        return StepPlan(self.starts(starts), (), tuple(segments), ())

    def check(self, plan: StepPlan) -> None:
        with torch.inference_mode():
            bucket = next(size for size in self.runner.buckets if size >= plan.num_rows)
            scores = self.runner.step.kernels.scores(self.runner._fields[:bucket])[:, : SPACE.num_scores]
        row = 0
        for segment in plan.segments:
            want = self.expected[segment.slot][segment.position : segment.position + segment.num_rows]
            got = scores[row : row + segment.num_rows]
            torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
            row += segment.num_rows


@pytest.mark.parametrize("config", [CONFIG, UNEVEN], ids=["even", "uneven"])
def test_rows_match_the_dense_forward(config: LanguageModelConfig) -> None:
    runner, model = make_runner(config), Qwen2Model(config, weights_of(config))
    for seed in range(1):
        talk = Talk(runner, model, random.Random(seed))
        while talk.fed != [len(ids) for ids in talk.ids]:
            plan = talk.plan()
            if plan.segments:
                runner.run(plan)()
                talk.check(plan)


def plan_of(*segments: Segment, starts: tuple[TurnStart, ...] = ()) -> StepPlan:
    return StepPlan(starts, (), segments, ())


def start_of(slot: int, blocks: tuple[int, ...], limits: TurnLimits = LIMITS, **spec: float) -> TurnStart:
    return TurnStart(slot, limits, limits.max_new_ids, SlotReset(str(slot), SamplingSpec(**spec), blocks))  # type: ignore[arg-type]


def test_it_samples_what_the_plain_runner_samples() -> None:
    """Prompts, decoding rows and appended ids mixed, several settings; ids come from the device from the second step on."""
    runner, plain = make_runner(), EagerRunner(tiny_model(), SMALL, make_runner().step.sampler)
    specs: tuple[dict[str, Any], ...] = (
        {"seed": 3},
        {"temperature": 0.0},
        {"seed": 4, "top_k": 5, "temperature": 1.5},
        {"seed": 5, "top_p": 1.0},
    )
    starts = tuple(start_of(slot, tuple(range(3 * slot, 3 * slot + 3)), **spec) for slot, spec in enumerate(specs))
    prompts = [Segment(slot, 0, tuple(range(7, 12 + slot)), True) for slot in range(4)]
    plans = [plan_of(*prompts[:2], starts=starts[:2]), plan_of(*prompts[2:], Segment(0, 5, None, True), starts=starts[2:])]
    position = [6, 6, 7, 8]
    for step in range(12):
        decoding = [Segment(slot, position[slot] + step, None, True) for slot in range(4) if slot != step % 4]
        appended = Segment(step % 4, position[step % 4] + step, (step + 1,), step % 3 == 0)
        plans.append(plan_of(*decoding, appended))
    for plan in plans:
        assert runner.run(plan)() == plain.run(plan)()


def test_padding_rows_touch_nothing() -> None:
    runner = make_runner()
    runner.run(plan_of(Segment(0, 0, tuple(range(1, 20)), False), starts=(start_of(0, (14, 3)),)))()
    before = {name: value.clone() for name, value in vars(runner.step.state).items() if isinstance(value, torch.Tensor)}
    memory = runner.cache.blocks.clone()
    runner.run(plan_of(Segment(0, 19, (4, 5, 6), False)))()  # a bucket of 4 rows
    memory[:, :, 14, 19:22] = runner.cache.blocks[:, :, 14, 19:22]
    assert torch.equal(runner.cache.blocks[:, :, : SMALL.num_blocks], memory[:, :, : SMALL.num_blocks])
    assert not memory[:, :, [block for block in range(SMALL.num_blocks) if block not in (14, 3)]].any()
    for name, value in before.items():
        assert torch.equal(getattr(runner.step.state, name)[: SMALL.max_sessions], value[: SMALL.max_sessions]), name


def test_nan_stays_in_its_session() -> None:
    """Keys of a failed session stay non-finite, so that it is reported as failed; its values are made finite, because the next owner
    of its blocks multiplies them by zero."""
    runner = make_runner()
    poisoned = 123
    embedding = runner.step.weights.embedding.clone()
    runner.step.weights.embedding[poisoned] = torch.nan
    engine = TorchEngine(runner, runner.settings, threaded=False)
    bad, good = engine.open("bad", SamplingSpec(), 150), engine.open("good", SamplingSpec(), 150)
    sinks = RecordingSink(), RecordingSink()
    bad.turn([5, poisoned, *range(1, 70)], TurnLimits(20), sinks[0])  # only the second row is not finite; scores come from a later one
    good.turn([5, 6], LIMITS, sinks[1])
    while engine.step():
        pass
    assert sinks[0].result is not None and sinks[0].result.end is TurnEnd.ERROR
    assert sinks[1].result is not None and sinks[1].result.end is TurnEnd.LENGTH
    keys, values = runner.cache.blocks.transpose(0, 1)
    assert keys.isnan().any() and values.isfinite().all()
    bad.close()
    good.close()
    runner.step.weights.embedding.copy_(embedding)
    again = TorchEngine(runner, runner.settings, threaded=False)
    sink = RecordingSink()
    again.open("new", SamplingSpec(), 150).turn([5, 6], TurnLimits(3, forbidden=frozenset(SPACE.specials)), sink)
    while again.step():
        pass
    assert sink.ids == sinks[1].ids[:3]


class TestGraphsEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        runner = FaultyRunner(make_runner(settings=SETTINGS))
        bench = stepped_bench(runner)
        yield bench
        bench.engine.close()
        bench.engine.check_integrity()
        assert runner.most_waiting <= runner.run_ahead + 1

    def test_it_does_run_ahead(self) -> None:
        runner = FaultyRunner(make_runner(settings=SETTINGS))
        bench = stepped_bench(runner)
        bench.run(bench.engine.open("a", GREEDY, 100), [1, 2, 3], NO_STOP)
        assert runner.most_waiting == runner.run_ahead + 1 > 1
