"""The step that GPUs record, run on the CPU in float32: the same functions, neither compiled nor recorded, against the plain model."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as flex

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs import layer
from bistream.text2token.graphs.attention import BLOCK_SIZE, AttentionOptions, BlockLists, attend, list_blocks
from bistream.text2token.graphs.runner import GraphStepRunner, bucket_sizes
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights, build_weights
from tests.fakes import RecordingSink
from tests.unit.text2token.engine_conformance import Bench, EngineConformance, FaultyRunner
from tests.unit.text2token.tiny import CONFIG, SPACE, random_state, tiny_model

CPU = torch.device("cpu")
UNEVEN = dataclasses.replace(CONFIG, hidden_size=96, num_attention_heads=6)  # 3 query heads per key/value head: one is padding
SMALL = EngineSettings(max_sessions=5, max_rows=24, kv_cache_tokens=15 * BLOCK_SIZE, block_size=BLOCK_SIZE, max_sequence_ids=300)
SETTINGS = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=4096, block_size=BLOCK_SIZE, max_sequence_ids=2048)
LIMITS = TurnLimits(1000, forbidden=frozenset(SPACE.specials))


@pytest.fixture(autouse=True)
def interpreted_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """``flex_attention`` warns outside compiled code that it is slow."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def weights_of(config: LanguageModelConfig) -> ModelWeights:
    return tiny_model().weights if config is CONFIG else build_weights(random_state(config), config, CPU, torch.float32)


def make_runner(config: LanguageModelConfig = CONFIG, settings: EngineSettings = SMALL) -> GraphStepRunner:
    return GraphStepRunner(config, fold_weights(weights_of(config), config, CPU, torch.float32), settings)


def attend_plainly(query: torch.Tensor, memory: torch.Tensor, lists: BlockLists, options: AttentionOptions) -> torch.Tensor:
    """Reference for ``attend``, from the listed blocks alone (and much faster here)."""
    width = int(lists.counts.max())
    places = (lists.blocks[:, :width, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten(1)
    counted = (torch.arange(width) < lists.counts[:, None]).repeat_interleave(BLOCK_SIZE, dim=1)
    seen = counted & ((places < lists.hidden_from[:, None]) | (places >= lists.hidden_to[:, None]))
    keys, values = memory[:, places].transpose(2, 3)  # [n, kv_heads, positions, head_size]
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[-1])
    scores = (grouped @ keys.transpose(2, 3) * query.shape[-1] ** -0.5).masked_fill(~seen[:, None, None], -torch.inf)
    attended: torch.Tensor = torch.softmax(scores, dim=-1) @ values.masked_fill(~seen[:, None, :, None], 0.0)
    return attended.flatten(1)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 5 * BLOCK_SIZE - 1), min_size=1, max_size=6), st.integers(1, 16), st.integers(0, 10**6))
def test_a_row_sees_its_own_blocks_up_to_its_position(positions: list[int], splits: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.stack([torch.randperm(9, generator=generator)[:5] for _ in positions]).int()
    memory = torch.randn((2, 9 * BLOCK_SIZE, 2, 16), generator=generator)
    query = torch.randn((len(positions), 8, 1, 16), generator=generator)
    slots = torch.arange(len(positions)).flip(0)
    lists = list_blocks(table, slots, torch.tensor(positions))
    got = attend(query, memory, lists, AttentionOptions(splits, 2, 3))
    for row, position in enumerate(positions):
        places = [int(table[slots[row], number // BLOCK_SIZE]) * BLOCK_SIZE + number % BLOCK_SIZE for number in range(position + 1)]
        keys, values = memory[:, places].transpose(1, 2)
        scores = query[row].view(2, 4, 16) @ keys.transpose(1, 2) / 4
        torch.testing.assert_close(got[row], (torch.softmax(scores, dim=-1) @ values).flatten())
    torch.testing.assert_close(attend_plainly(query, memory, lists, AttentionOptions(splits, 2, 3)), got)


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
            scores, _ = self.runner.step.scores(self.runner._fields[:bucket])
        row = 0
        for segment in plan.segments:
            want = self.expected[segment.slot][segment.position : segment.position + segment.num_rows]
            got = scores[row : row + segment.num_rows] + self.runner.step.weights.head_bias
            torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
            row += segment.num_rows


@pytest.mark.parametrize("config", [CONFIG, UNEVEN], ids=["even", "padded"])
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


@pytest.fixture
def plain_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "attend", attend_plainly)


def test_it_samples_what_the_plain_runner_samples(plain_attention: None) -> None:
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


def test_padding_rows_touch_nothing(plain_attention: None) -> None:
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


def test_nan_stays_in_its_session(plain_attention: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a failed session stay non-finite, so that it is reported as failed; its values are made finite, because the next owner
    of its blocks multiplies them by zero."""
    runner = make_runner()
    poisoned = 123
    embedding = runner.step.weights.embedding.clone()
    runner.step.weights.embedding[poisoned] = torch.nan
    engine = TorchEngine(runner, runner.settings, threaded=False, runner=runner)
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
    monkeypatch.undo()  # as compiled attention does: every value in memory is multiplied
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    runner.step.weights.embedding.copy_(embedding)
    again = TorchEngine(runner, runner.settings, threaded=False, runner=runner)
    sink = RecordingSink()
    again.open("new", SamplingSpec(), 150).turn([5, 6], TurnLimits(3, forbidden=frozenset(SPACE.specials)), sink)
    while again.step():
        pass
    assert sink.ids == sinks[1].ids[:3]


@given(st.integers(1, 2000))
def test_buckets_double_up_to_the_most_rows(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes[0] == 1 and sizes[-1] == most and list(sizes) == sorted(set(sizes))
    assert all(wide <= 2 * narrow for narrow, wide in zip(sizes, sizes[1:], strict=False))


class TestGraphsEngine(EngineConformance):
    @pytest.fixture
    def bench(self, plain_attention: None) -> Iterator[Bench]:
        graphs = make_runner(settings=SETTINGS)
        runner = FaultyRunner(graphs)
        engine = TorchEngine(graphs, SETTINGS, threaded=False, runner=runner)

        def drive(sinks: Sequence[RecordingSink]) -> None:
            while any(sink.result is None for sink in sinks):
                assert engine.step(), "the engine has nothing to do, but a turn has not ended"

        yield Bench(engine, drive, lambda: [engine.step(), engine.step()] and None, runner.break_down)
        engine.close()
        engine.check_integrity()
