"""Prompts of several steps, of several sessions, in company or not: each session says what it says alone. For every runner of steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.torch_engine import TorchEngine
from tests.fakes import RecordingSink
from tests.unit.text2token.tiny import SPACE

MAX_NEW = 5
MOST_STEPS = 3


def check_long_prompts(make: Callable[[], TorchEngine], seed: int) -> None:
    """make: an engine whose sessions hold ``MOST_STEPS * max_rows + 30`` ids, with room for six of them."""
    rng = random.Random(seed)
    max_rows = make().settings.max_rows
    voice = [SPACE.sos, *_some(rng, 30)]
    turns = {}
    for number in range(rng.randrange(1, 3)):
        length = max_rows * rng.randrange(1, MOST_STEPS + 1) + rng.randrange(-2, 3)
        turns[f"long{number}"] = [[*voice, *_some(rng, max_rows * MOST_STEPS)][:length], _some(rng, 3)]
    for number in range(rng.randrange(4)):
        turns[f"beside{number}"] = [[SPACE.sos, *_some(rng, rng.randrange(1, 20))], _some(rng, 3), _some(rng, 2)]
    specs = {name: SamplingSpec(seed=rng.randrange(1000), temperature=rng.choice((0.0, 1.0))) for name in turns}
    expected = {}
    for name in turns:
        expected |= _talk(make(), {name: turns[name]}, specs, random.Random(0))
    engine = make()
    if rng.random() < 0.5:  # the cache knows a part of a prompt
        known = turns["long0"][0][: rng.randrange(1, len(turns["long0"][0]) + 1)]
        _talk(engine, {"earlier": [known]}, {"earlier": SamplingSpec()}, random.Random(0))
    assert _talk(engine, turns, specs, rng) == expected
    assert engine.stats().kv_tokens_used == 0


def _some(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(200) for _ in range(count)]


def _talk(
    engine: TorchEngine, turns: dict[str, list[list[int]]], specs: dict[str, SamplingSpec], rng: random.Random
) -> dict[str, list[Sequence[int]]]:
    """Sessions that begin at random times, those beside the long ones first; what each says in its turns."""
    sessions = {name: engine.open(name, specs[name], MOST_STEPS * engine.settings.max_rows + 30) for name in turns}
    limits = TurnLimits(MAX_NEW, forbidden=frozenset(SPACE.specials), record_on_length=SPACE.fill)
    sinks: dict[str, list[RecordingSink]] = {name: [] for name in turns}
    while True:
        for name, said in sorted(sinks.items()):
            is_idle = not said or said[-1].result is not None
            if is_idle and len(said) < len(turns[name]) and rng.random() < (0.9 if name.startswith("beside") else 0.4):
                said.append(RecordingSink())
                sessions[name].turn(turns[name][len(said) - 1], limits, said[-1])
        worked = engine.step()
        engine.check_integrity()
        if not worked and all(len(said) == len(turns[name]) for name, said in sinks.items()):
            break
    for name, session in sessions.items():
        assert all(sink.result is not None and sink.result.end is TurnEnd.LENGTH for sink in sinks[name]), name
        session.close()
    return {name: [sink.ids for sink in said] for name, said in sinks.items()}
