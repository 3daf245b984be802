"""Sessions that talk to an engine on the GPU, for the tests of every runner of steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bistream.text2token.engine import EngineSequence, TurnEnd, TurnLimits
from bistream.text2token.step_runner import StepRunner
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.tiny import SPACE

ALL_STOPS = frozenset(SPACE.specials)


def engine_of(runner: StepRunner) -> TorchEngine:
    """A fresh engine: all blocks and slots of the runner are free again, with their old contents."""
    return TorchEngine(runner, runner.settings, threaded=False)


def drain(engine: TorchEngine) -> None:
    while engine.step():
        engine.check_integrity()


def talk(
    engine: TorchEngine, sessions: Sequence[EngineSequence], turns: Sequence[Sequence[Sequence[int]]], max_new: int
) -> list[list[int]]:
    """All sessions at once, turn after turn; the ids that each of them generated."""
    said: list[list[int]] = [[] for _ in sessions]
    for turn in range(max(map(len, turns))):
        sinks = {}
        for number, session in enumerate(sessions):
            if turn < len(turns[number]):
                sinks[number] = RecordingSink()
                session.turn(turns[number][turn], TurnLimits(max_new, forbidden=ALL_STOPS, record_on_length=SPACE.fill), sinks[number])
        drain(engine)
        for number, sink in sinks.items():
            assert sink.result is not None and sink.result.end is TurnEnd.LENGTH
            said[number] += sink.ids
    return said


def random_turns(rng: random.Random) -> list[list[int]]:
    prompt = [SPACE.sos, *(rng.randrange(200) for _ in range(rng.randrange(1, 300)))]
    return [prompt, *([rng.randrange(200) for _ in range(rng.randrange(1, 7))] for _ in range(rng.randrange(1, 4)))]
