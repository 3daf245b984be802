"""A fault of one sequence, in each part of a step: it ends that sequence with one error, and the others say what they say alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token import scheduler
from bistream.text2token.block_pool import BlockPool
from bistream.text2token.engine import FAILED_SENTENCE, SEQUENCE_FAILED_SENTENCE, SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs import runner as graphs
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sampler import RepetitionAwareSampler, SamplerState
from bistream.text2token.scheduler import Scheduler
from bistream.text2token.sequence import Segment
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.text_reading import TextReader
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.test_graphs import make_runner
from tests.unit.text2token.tiny import SPACE, tiny_model

MAX_ROWS = 16
VOICE = [SPACE.sos, *range(3, 40)]
LIMITS = TurnLimits(7, forbidden=frozenset(SPACE.specials), record_on_length=SPACE.fill)
TURNS = {  # prompts of one to four steps
    "victim": [[*VOICE, 90, 91, 92], [5, 6, 7], [8] * 20],
    "same voice": [[*VOICE, 93], [9, 10]],
    "long": [[SPACE.sos, *range(50, 110)], [11]],
    "short": [[SPACE.sos, 60, 61, 62], [12, 13], [14]],
}
SPECS = {name: SamplingSpec(seed=number) for number, name in enumerate(TURNS)}


def settings_of(block_size: int) -> EngineSettings:
    return EngineSettings(5, MAX_ROWS, 5 * 192, block_size, 192, knows_texts=block_size == 8)


def plain_runner() -> StepRunner:
    return EagerRunner(tiny_model(), settings_of(8), RepetitionAwareSampler(), head=(1, 0))


def graph_runner() -> StepRunner:
    return make_runner(settings=settings_of(64))


def engine_of(runner: StepRunner) -> TorchEngine:
    return TorchEngine(runner, runner.settings, threaded=False)


@cache
def alone(name: str, make: Callable[[], StepRunner]) -> list[list[int]]:
    engine = engine_of(make())
    sequence, said = engine.open(name, SPECS[name], 160), []
    for ids in TURNS[name]:
        sink = RecordingSink()
        sequence.turn(ids, LIMITS, sink)
        while engine.step():
            pass
        said.append(sink.ids)
    return said


class Fault:
    """Hits the victim in a call that is for it, once it is armed. times: at most."""

    def __init__(self, engine: TorchEngine, times: int) -> None:
        self.engine, self.left, self.is_armed = engine, times, False

    def hit(self, slots: Sequence[int]) -> None:
        victim = self.engine._scheduler.sequences.get("victim")
        if self.is_armed and self.left > 0 and victim is not None and victim.slot in slots:
            self.left -= 1
            raise RuntimeError("a fault of one sequence")

    def before(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, slots: Callable[..., Sequence[int]]) -> None:
        """slots: of the arguments of the function ``name`` of ``owner``."""
        real = getattr(owner, name)

        def faulty(*arguments: Any, **named: Any) -> Any:
            self.hit(slots(*arguments, **named))
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, faulty)


def slots_of(segments: Sequence[Segment]) -> list[int]:
    return [segment.slot for segment in segments]


def own(fault: Fault, blocks: Sequence[int]) -> list[int]:
    """The victim's slot if one of the blocks is its own."""
    victim = fault.engine._scheduler.sequences.get("victim")
    return [victim.slot] if victim is not None and set(blocks) & set(victim.blocks) else []


def faulty_forward(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """After keys and values are written."""
    real = EagerRunner._forward

    def forward(self: EagerRunner, segments: tuple[Segment, ...], observe: Any) -> Any:
        hidden = real(self, segments, observe)
        fault.hit(slots_of(segments))
        return hidden

    monkeypatch.setattr(EagerRunner, "_forward", forward)


Inject = Callable[[Fault, pytest.MonkeyPatch], None]
PLANNING: dict[str, Inject] = {
    "planning": lambda fault, patch: fault.before(patch, scheduler, "Segment", lambda slot, *rest: [slot]),
    "feeding": lambda fault, patch: fault.before(patch, Scheduler, "_feed", lambda self, sequence, *rest: [sequence.slot]),
    "ids": lambda fault, patch: fault.before(patch, Scheduler, "_take_id", lambda self, sequence, *rest: [sequence.slot]),
    "prefix cache": lambda fault, patch: fault.before(patch, BlockPool, "register", lambda self, node, block, ids: own(fault, [block])),
}
COMPUTING: dict[str, Inject] = {
    "starts": lambda fault, patch: fault.before(patch, SamplerState, "start_turns", lambda self, starts: [start.slot for start in starts]),
    "copies": lambda fault, patch: fault.before(
        patch, PagedCache, "copy_blocks", lambda self, copies: own(fault, [target for _, target in copies])
    ),
    "forward": faulty_forward,
    "reader": lambda fault, patch: fault.before(patch, TextReader, "begin", lambda self, segments, *rest: slots_of(segments)),
    "sampler": lambda fault, patch: fault.before(
        patch, RepetitionAwareSampler, "choose", lambda self, scores, state, slots: slots.tolist()
    ),
}
HOST_OF_GRAPHS: dict[str, Inject] = {
    "rows": lambda fault, patch: fault.before(patch, graphs, "write_rows", lambda target, segments, filler: slots_of(segments)),
    "starts": lambda fault, patch: fault.before(
        patch, graphs, "write_starts", lambda numbers, blocks, starts, space: [start.slot for start in starts]
    ),
}


def converse(engine: TorchEngine, rng: random.Random, fault: Fault) -> dict[str, list[RecordingSink]]:
    """All talk at once; the fault is armed at some time. Until nobody has anything to say. The cache knows the voice, or does not."""
    if rng.random() < 0.5:
        earlier = engine.open("earlier", SamplingSpec(), 100)
        earlier.turn([*VOICE, 95], LIMITS, RecordingSink())
        while engine.step():
            pass
        earlier.close()
    sequences = {name: engine.open(name, SPECS[name], 160) for name in rng.sample(sorted(TURNS), len(TURNS))}
    sinks: dict[str, list[RecordingSink]] = {name: [] for name in sequences}
    armed_at = rng.choice((0, rng.randrange(30)))
    for number in range(1000):
        fault.is_armed = number >= armed_at
        for name, said in sinks.items():
            has_ended = any(sink.result is not None and sink.result.end is TurnEnd.ERROR for sink in said)
            is_idle = not has_ended and (not said or said[-1].result is not None)
            if is_idle and len(said) < len(TURNS[name]) and rng.random() < 0.5:
                said.append(RecordingSink())
                sequences[name].turn(TURNS[name][len(said) - 1], LIMITS, said[-1])
        worked = engine.step()
        engine.check_integrity()
        if not worked and all(len(said) == len(TURNS[name]) or name == "victim" for name, said in sinks.items()):
            break
    for sequence in sequences.values():
        sequence.close()
    return sinks


def check(make: Callable[[], StepRunner], inject: Inject, seed: int, times: int) -> None:
    expected = {name: alone(name, make) for name in TURNS}
    engine = engine_of(make())
    fault = Fault(engine, times)
    with pytest.MonkeyPatch.context() as patch:
        inject(fault, patch)
        sinks = converse(engine, random.Random(seed), fault)
    for name, said in sinks.items():
        heard = [sink.ids for sink in said]
        assert not any(sink.late for sink in said)
        if name != "victim":
            assert heard == expected[name], name
            continue
        ends = [sink.result for sink in said]
        assert all(end == TurnResult(TurnEnd.LENGTH) for end in ends[:-1])
        assert heard[:-1] == expected[name][: len(heard) - 1] and heard[-1] == expected[name][len(heard) - 1][: len(heard[-1])]
        if ends[-1] != TurnResult(TurnEnd.LENGTH):
            assert ends[-1] == TurnResult(TurnEnd.ERROR, error=SEQUENCE_FAILED_SENTENCE)
    assert engine.healthy and engine.stats().sessions == 0 and engine.stats().kv_tokens_used == 0
    again = RecordingSink()
    engine.open("victim", SPECS["victim"], 160).turn(TURNS["victim"][0], LIMITS, again)
    while engine.step():
        engine.check_integrity()
    assert again.ids == expected["victim"][0], "nothing that it left is wrong"


@pytest.mark.parametrize("place", [*PLANNING, *COMPUTING])
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_a_fault_of_one_sequence_ends_that_one(place: str, seed: int) -> None:
    check(plain_runner, (PLANNING | COMPUTING)[place], seed, times=10**6)


@pytest.mark.parametrize("place", COMPUTING)
@settings(max_examples=1)
@given(seed=st.integers(0, 10**6))
def test_a_fault_that_does_not_come_again_ends_nobody(place: str, seed: int) -> None:
    """Memory, for example, that is there for each alone."""
    engine = engine_of(plain_runner())
    fault = Fault(engine, times=1)
    with pytest.MonkeyPatch.context() as patch:
        COMPUTING[place](fault, patch)
        sinks = converse(engine, random.Random(seed), fault)
    for name, said in sinks.items():
        assert [sink.ids for sink in said] == alone(name, plain_runner)[: len(said)]
        assert all(sink.result == TurnResult(TurnEnd.LENGTH) for sink in said)


@pytest.mark.parametrize("place", [*PLANNING, *HOST_OF_GRAPHS])
def test_the_same_of_steps_that_run_ahead(place: str) -> None:
    """What the host does for a step of graphs, while two more are in flight."""
    check(graph_runner, (PLANNING | HOST_OF_GRAPHS)[place], seed=1, times=10**6)


def test_a_fault_on_a_device_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left there is unknown, and not tried again."""
    runner = graph_runner()
    engine, sinks, launched = engine_of(runner), [RecordingSink(), RecordingSink()], list[int]()
    for number, sink in enumerate(sinks):
        engine.open(str(number), SamplingSpec(), 100).turn([SPACE.sos, number], LIMITS, sink)
    engine.step()

    def fail(bucket: int) -> None:
        launched.append(bucket)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(runner, "_compute", fail)
    while engine.step():
        pass
    assert not engine.healthy and len(launched) == 1
    assert all(sink.result == TurnResult(TurnEnd.ERROR, error=FAILED_SENTENCE) for sink in sinks)


def test_an_engine_that_computes_nothing_at_all_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a single sequence, which then was not at fault."""
    runner = plain_runner()
    engine, sink = engine_of(runner), RecordingSink()
    engine.open("a", SamplingSpec(), 100).turn([SPACE.sos, 1], LIMITS, sink)

    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner, "_forward", fail)
    while engine.step():
        pass
    assert not engine.healthy and sink.result == TurnResult(TurnEnd.ERROR, error=FAILED_SENTENCE)
    engine.check_integrity()
