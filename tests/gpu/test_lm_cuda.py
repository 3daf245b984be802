"""The language model's recorded steps: close to the dense forward pass, batch-invariant, and in keeping with the engine's contract."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights, build_weights
from tests.fakes import RecordingSink
from tests.gpu.text2token.conversation import ALL_STOPS, drain, engine_of, random_turns, talk
from tests.unit.text2token.engine_conformance import Bench, EngineConformance, FaultyRunner
from tests.unit.text2token.long_prompts import check_long_prompts
from tests.unit.text2token.test_faults import HOST_OF_GRAPHS, PLANNING, check
from tests.unit.text2token.tiny import SPACE, random_state

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("needs a GPU of compute capability 8.0", allow_module_level=True)

from bistream.text2token.graphs.batch import bucket_sizes
from bistream.text2token.graphs.runner import GraphStepRunner
from bistream.text2token.graphs.weights import fold_weights

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DEVICE = torch.device("cuda")
# real widths, two layers; the id space of the conformance suite
NARROW = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=200, speech_token_size=120, max_position_embeddings=4096)
WIDE = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=500, max_position_embeddings=4096)
SMALLEST = LanguageModelConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    text_vocab_size=500, max_position_embeddings=4096,
)  # fmt: skip
MANY = EngineSettings(max_sessions=256, max_rows=256, kv_cache_tokens=256 * 1024, block_size=64, max_sequence_ids=1024)
SETTINGS = EngineSettings(max_sessions=48, max_rows=128, kv_cache_tokens=48 * 1024, block_size=64, max_sequence_ids=2048)


@cache
def weights(config: LanguageModelConfig) -> ModelWeights:
    """float32 numbers that bfloat16 represents exactly, so that only activations are rounded."""
    state = {key: value.to(torch.bfloat16).float() for key, value in random_state(config).items()}
    return build_weights(state, config, DEVICE, torch.float32)


def make_runner(config: LanguageModelConfig = NARROW, settings: EngineSettings = SETTINGS, record: bool = True) -> GraphStepRunner:
    return GraphStepRunner(config, fold_weights(weights(config), config, DEVICE, torch.bfloat16), settings, record=record)


def last_scores(runner: GraphStepRunner, rows: int) -> torch.Tensor:
    """Of the step that has just been run."""
    torch.cuda.synchronize()
    return runner.step.kernels.buffers.scores[:rows, : runner.space.num_scores].clone()


@cache
def shared_runner() -> GraphStepRunner:
    return make_runner()


@pytest.mark.parametrize("config", [WIDE, SMALLEST], ids=["full", "smallest"])
def test_rows_match_the_dense_forward(config: LanguageModelConfig) -> None:
    """Chunks of a prompt through every kind of kernel, against float32: about as accurate as bfloat16 activations allow."""
    runner = make_runner(config, SETTINGS)
    model = Qwen2Model(config, weights(config))
    ids = torch.randint(0, config.text_vocab_size, (700,), generator=torch.Generator().manual_seed(0))
    expected = model.logits(model.forward_dense(ids.to(DEVICE)))
    reset = SlotReset("a", SamplingSpec(), tuple(range(5, 16)))
    starts: tuple[TurnStart, ...] = (TurnStart(3, TurnLimits(10), 10, reset),)
    position = 0
    for count in (128, 100, 64, 1, 16, 3, 40, 90, 1, 1, 7, 128, 121):
        rows = tuple(ids[position : position + count].tolist())
        runner.run(StepPlan(starts, (), (Segment(3, position, rows, False),), ()))()
        starts = ()
        got = last_scores(runner, count)
        want = expected[position : position + count]
        assert torch.linalg.vector_norm(got - want) / torch.linalg.vector_norm(want) < 0.02
        position += count
    assert position == len(ids)


def test_scores_are_batch_invariant() -> None:
    """Bit for bit: the same row alone, in every bucket, at any position, among any neighbours."""
    runner = make_runner(WIDE, MANY)
    runner.cache.blocks.normal_(generator=torch.Generator(DEVICE).manual_seed(0))
    torch.cuda.synchronize()
    rng = random.Random(0)
    segments = [Segment(slot, rng.randrange(1, 1023), (rng.randrange(WIDE.text_vocab_size),), False) for slot in range(256)]
    starts = tuple(
        TurnStart(slot, TurnLimits(10), 10, SlotReset(str(slot), SamplingSpec(), tuple(range(slot * 16, slot * 16 + 16))))
        for slot in range(256)
    )

    def scores(chosen: Sequence[Segment], begin: tuple[TurnStart, ...] = ()) -> torch.Tensor:
        runner.run(StepPlan(begin, (), tuple(chosen), ()))()
        return last_scores(runner, len(chosen))

    together = scores(segments, starts)
    assert torch.isfinite(together).all()
    for size in (*bucket_sizes(256), 3, 11, 23, 57, 77, 150, 201):
        order = rng.sample(range(256), size)
        assert torch.equal(scores([segments[number] for number in order]), together[order]), size


@pytest.mark.parametrize(
    "spec", [SamplingSpec(temperature=0.0), SamplingSpec(seed=5), SamplingSpec(seed=6, top_k=60, top_p=0.95, temperature=1.3)]
)
def test_a_session_generates_the_same_alone_and_among_others(spec: SamplingSpec) -> None:
    rng = random.Random(1)
    turns = random_turns(rng)
    engine = engine_of(shared_runner())
    alone = talk(engine, [engine.open("a", spec, 1500)], [turns], 12)[0]
    engine = engine_of(shared_runner())
    others = [engine.open(f"o{number}", SamplingSpec(seed=number), 900) for number in range(40)]
    sessions = [*others[:20], engine.open("a", spec, 1500), *others[20:]]
    among = talk(engine, sessions, [turns if number == 20 else random_turns(rng) for number in range(41)], 12)
    assert among[20] == alone and len(alone) == 12 * len(turns)


def test_graphs_and_single_launches_generate_the_same() -> None:
    rng = random.Random(2)
    turns = [random_turns(rng) for _ in range(6)]
    specs = [SamplingSpec(seed=number, temperature=float(number % 3)) for number in range(6)]
    said = []
    for runner in (shared_runner(), make_runner(record=False)):
        engine = engine_of(runner)
        said.append(talk(engine, [engine.open(str(number), spec, 900) for number, spec in enumerate(specs)], turns, 15))
    assert said[0] == said[1]


@pytest.mark.parametrize("seed", range(12))
def test_prompts_of_several_steps(seed: int) -> None:
    """In company and alone, with a cache that knows the prompt or not."""
    check_long_prompts(lambda: engine_of(shared_runner()), seed)


@pytest.mark.parametrize("place", [*PLANNING, *HOST_OF_GRAPHS])
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_of_one_sequence_ends_that_one(place: str, seed: int) -> None:
    check(shared_runner, (PLANNING | HOST_OF_GRAPHS)[place], seed, times=10**6)


def test_nan_fails_its_session_only() -> None:
    runner = make_runner()
    poisoned = 123
    runner.step.weights.embedding[poisoned] = float("nan")
    turns = [[[SPACE.sos, 5, 6, 7], [8]], [[SPACE.sos, 9, poisoned, *range(10, 90)]]]  # scores come from a later row
    engine = engine_of(runner)
    good, bad = engine.open("good", SamplingSpec(), 300), engine.open("bad", SamplingSpec(), 300)
    sinks = RecordingSink(), RecordingSink()
    for session, sink, turn in zip((good, bad), sinks, turns, strict=True):
        session.turn(turn[0], TurnLimits(20, forbidden=ALL_STOPS), sink)
    drain(engine)
    assert sinks[0].result is not None and sinks[0].result.end is TurnEnd.LENGTH
    assert sinks[1].result is not None and sinks[1].result.end is TurnEnd.ERROR
    bad.close()
    again = engine_of(runner)  # its first blocks are the ones that held NaN
    assert talk(again, [again.open("new", SamplingSpec(), 300)], [turns[0][:1]], 20)[0] == sinks[0].ids


class TestGraphsEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        settings = EngineSettings(max_sessions=6, max_rows=32, kv_cache_tokens=4096, block_size=64, max_sequence_ids=2048)
        runner = FaultyRunner(shared_runner())
        engine = TorchEngine(runner, settings, threaded=False)

        def drive(sinks: Sequence[RecordingSink]) -> None:
            while any(sink.result is None for sink in sinks):
                assert engine.step(), "the engine has nothing to do, but a turn has not ended"

        yield Bench(engine, drive, lambda: [engine.step(), engine.step()], runner.break_down, settings.max_sessions)
        engine.close()
        engine.check_integrity()
