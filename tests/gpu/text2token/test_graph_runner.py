"""The recorded step of library code on a CUDA GPU: close to the dense forward pass, recording changes nothing, the engine's contract holds.

Ids are compared in float32. In 16 bit they depend on the number of rows of a step, because the matrix library's choice of kernel does.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.step_runners import device_and_dtype
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights, build_weights
from tests.fakes import RecordingSink
from tests.gpu.text2token.conversation import ALL_STOPS, drain, engine_of, random_turns, talk
from tests.unit.text2token.engine_conformance import Bench, EngineConformance, FaultyRunner
from tests.unit.text2token.long_prompts import check_long_prompts
from tests.unit.text2token.test_faults import HOST_OF_GRAPHS, PLANNING, check
from tests.unit.text2token.tiny import SPACE, random_state

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.text2token.graphs.runner import GraphStepRunner
from bistream.text2token.graphs.step import CANDIDATES
from bistream.text2token.graphs.weights import fold_weights

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DEVICE, SERVED = device_and_dtype("cuda", "auto")
# real widths, two layers; the id space of the conformance suite
NARROW = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=200, speech_token_size=120, max_position_embeddings=4096)
WIDE = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=500, max_position_embeddings=4096)
ODD = LanguageModelConfig(
    hidden_size=160, intermediate_size=300, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
    text_vocab_size=500, speech_token_size=300, max_position_embeddings=4096,
)  # fmt: skip
# Few row counts: each is compiled, which takes seconds.
SETTINGS = EngineSettings(max_sessions=12, max_rows=16, kv_cache_tokens=24 * 1024, block_size=64, max_sequence_ids=2048)
MANY = EngineSettings(max_sessions=256, max_rows=256, kv_cache_tokens=256 * 1024, block_size=64, max_sequence_ids=1024)


@cache
def weights(config: LanguageModelConfig) -> ModelWeights:
    """float32 numbers that 16 bit represents exactly (except norms), so that mostly activations are rounded."""
    state = {key: value.to(SERVED).float() for key, value in random_state(config).items()}
    return build_weights(state, config, DEVICE, torch.float32)


@cache
def runner_of(
    config: LanguageModelConfig = NARROW, settings: EngineSettings = SETTINGS, dtype: torch.dtype = SERVED, record: bool = True
) -> GraphStepRunner:
    return GraphStepRunner(config, fold_weights(weights(config), config, DEVICE, dtype), settings, record=record)


def float32_runner() -> StepRunner:
    return runner_of(NARROW, SETTINGS, torch.float32)


def speak(runner: StepRunner, seed: int, specs: Sequence[SamplingSpec]) -> list[list[int]]:
    """What sessions with these settings generate from random prompts."""
    rng = random.Random(seed)
    engine = engine_of(runner)
    return talk(engine, [engine.open(str(number), spec, 900) for number, spec in enumerate(specs)], [random_turns(rng) for _ in specs], 15)


@pytest.mark.parametrize(
    ("config", "settings", "dtype", "tolerance"),
    [(WIDE, MANY, SERVED, 2e-2), (WIDE, MANY, torch.float32, 1e-4), (ODD, SETTINGS, torch.float32, 1e-4)],
    ids=["served", "float32", "odd sizes"],
)
def test_rows_match_the_dense_forward(config: LanguageModelConfig, settings: EngineSettings, dtype: torch.dtype, tolerance: float) -> None:
    """Chunks of a prompt through every row count, in blocks in random order, against float32."""
    runner = runner_of(config, settings, dtype)
    model = Qwen2Model(config, weights(config))
    ids = torch.randint(0, config.text_vocab_size, (1000,), generator=torch.Generator().manual_seed(0))
    expected = model.logits(model.forward_dense(ids.to(DEVICE)))
    blocks = tuple(random.Random(0).sample(range(settings.num_blocks), 16))
    starts: tuple[TurnStart, ...] = (TurnStart(3, TurnLimits(10), 10, SlotReset("a", SamplingSpec(), blocks)),)
    position = 0
    counts = itertools.cycle((128, 100, 64, 1, 16, 3, 40, 90, 1, 1, 7, 2, 5, 12, 30, 256, 244))
    while position < len(ids):
        count = min(next(counts), settings.max_rows, len(ids) - position)
        rows = tuple(ids[position : position + count].tolist())
        runner.run(StepPlan(starts, (), (Segment(3, position, rows, False),), ()))()
        starts = ()
        bucket = next(size for size in runner.buckets if size >= count)
        with torch.inference_mode(), runner._queue.entered():
            got = runner.step.scores(runner._fields[:bucket])[0][:count] + runner.step.weights.head_bias
            torch.cuda.synchronize()
        want = expected[position : position + count]
        assert torch.linalg.vector_norm(got - want) / torch.linalg.vector_norm(want) < tolerance, (count, position)
        position += count


def test_rows_of_many_sequences_match_the_dense_forward() -> None:
    """256 sequences of different lengths decode together: every row has its own blocks, position and padding."""
    runner, rng = runner_of(WIDE, MANY, torch.float32), random.Random(0)
    model = Qwen2Model(WIDE, weights(WIDE))
    sequences = [[rng.randrange(500) for _ in range(rng.randrange(2, 200))] for _ in range(256)]
    blocks = rng.sample(range(MANY.num_blocks), 4 * 256)
    for slot, ids in enumerate(sequences):
        reset = SlotReset(str(slot), SamplingSpec(), tuple(blocks[slot * 4 : slot * 4 + 4]))
        start = TurnStart(slot, TurnLimits(10), 10, reset)
        runner.run(StepPlan((start,), (), (Segment(slot, 0, tuple(ids[:-1]), False),), ()))()
    order = rng.sample(range(256), 256)
    segments = tuple(Segment(slot, len(sequences[slot]) - 1, (sequences[slot][-1],), False) for slot in order)
    runner.run(StepPlan((), (), segments, ()))()
    with torch.inference_mode(), runner._queue.entered():
        got = runner.step.scores(runner._fields)[0] + runner.step.weights.head_bias
        torch.cuda.synchronize()
    for row in range(0, 256, 17):
        whole = torch.tensor(sequences[order[row]], device=DEVICE)
        torch.testing.assert_close(got[row], model.logits(model.forward_dense(whole)[-1:])[0], rtol=1e-3, atol=1e-3)


MIXED = tuple(SamplingSpec(seed=number, temperature=float(number % 3), top_k=(25, 5, 32)[number // 3 % 3]) for number in range(9))


def test_it_generates_what_the_plain_runner_generates() -> None:
    """In float32, with prompts, appended ids and decoding rows in every step; one session needs more candidates than are recorded at first.

    So all that any session may need are sorted from then on (``GraphStepRunner._widen``): of 123 scores, all.
    """
    runner = runner_of(NARROW, SETTINGS, torch.float32)
    plain = EagerRunner(Qwen2Model(NARROW, weights(NARROW)), SETTINGS, RepetitionAwareSampler())
    for specs in (MIXED, (*MIXED[:6], SamplingSpec(seed=9, top_k=60, top_p=0.95, temperature=1.3))):
        assert speak(runner, 2, specs) == speak(plain, 2, specs)
    assert {candidates for _, candidates in runner._graphs} == {CANDIDATES, min(128, SPACE.num_scores)}


def test_recorded_and_launched_steps_generate_the_same() -> None:
    assert speak(runner_of(), 3, MIXED) == speak(runner_of(record=False), 3, MIXED)


def test_a_shared_prompt_changes_nothing() -> None:
    """Sessions of one voice share full blocks and copy the partial one."""
    runner = runner_of(NARROW, SETTINGS, torch.float32)
    prompt = [SPACE.sos, *range(1, 150)]
    turns = [[[*prompt, number], [7, 8, number]] for number in range(4)]
    said = []
    for share in (True, False):
        settings = EngineSettings(**{name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__} | {"share_prefix": share})
        engine = TorchEngine(runner, settings, threaded=False, runner=runner)
        first = talk(engine, [engine.open("first", SamplingSpec(), 900)], turns[:1], 10)
        said.append(first + talk(engine, [engine.open(str(number), SamplingSpec(), 900) for number in range(3)], turns[1:], 10))
    assert said[0] == said[1]


@pytest.mark.parametrize("seed", range(8))
def test_prompts_of_several_steps(seed: int) -> None:
    """In company and alone, with a cache that knows the prompt or not."""
    check_long_prompts(lambda: engine_of(float32_runner()), seed)


@pytest.mark.parametrize("place", [*PLANNING, *HOST_OF_GRAPHS])
@pytest.mark.parametrize("seed", range(2))
def test_a_fault_of_one_sequence_ends_that_one(place: str, seed: int) -> None:
    check(float32_runner, (PLANNING | HOST_OF_GRAPHS)[place], seed, times=10**6)


def test_nan_fails_its_session_only() -> None:
    """Scores come from a later row than the one with NaN; afterwards other sessions own the blocks."""
    runner = GraphStepRunner(NARROW, fold_weights(weights(NARROW), NARROW, DEVICE, SERVED), SETTINGS)
    poisoned = 123
    runner.step.weights.embedding[poisoned] = float("nan")
    torch.cuda.synchronize()
    turn = [SPACE.sos, 5, 6, 7]
    engine = engine_of(runner)
    sinks = RecordingSink(), RecordingSink()
    sessions = engine.open("good", SamplingSpec(), 300), engine.open("bad", SamplingSpec(), 300)
    sessions[0].turn(turn, TurnLimits(20, forbidden=ALL_STOPS), sinks[0])
    sessions[1].turn([SPACE.sos, 9, poisoned, *range(10, 90)], TurnLimits(20, forbidden=ALL_STOPS), sinks[1])
    drain(engine)
    assert sinks[0].result is not None and sinks[0].result.end is TurnEnd.LENGTH
    assert sinks[1].result is not None and sinks[1].result.end is TurnEnd.ERROR
    again = engine_of(runner)  # every block is free: some sessions get those that held NaN
    filling = [again.open(str(number), SamplingSpec(seed=number), 2000) for number in range(12)]
    assert all(len(ids) == 20 for ids in talk(again, filling, [[turn]] * 12, 20))


class TestGraphsEngine(EngineConformance):
    """In float32: the suite requires the same ids in any batch."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        settings = EngineSettings(max_sessions=6, max_rows=16, kv_cache_tokens=4096, block_size=64, max_sequence_ids=2048)
        graphs = runner_of(NARROW, SETTINGS, torch.float32)
        runner = FaultyRunner(graphs)
        engine = TorchEngine(graphs, settings, threaded=False, runner=runner)

        def drive(sinks: Sequence[RecordingSink]) -> None:
            while any(sink.result is None for sink in sinks):
                assert engine.step(), "the engine has nothing to do, but a turn has not ended"

        yield Bench(engine, drive, lambda: [engine.step(), engine.step()] and None, runner.break_down)
        engine.close()
        engine.check_integrity()
