"""The ledger above the engine suffices to go on after the engine has failed in the middle of a turn, in a new engine of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.interleave import Interleaver
from bistream.text2token.layout import Turn
from tests.fakes import RecordingSink
from tests.unit.text2token.engine_conformance import Bench
from tests.unit.text2token.tensorrt_llm.bench import PortBench
from tests.unit.text2token.test_engine_conformance import FaultyRunner, stepped_bench
from tests.unit.text2token.tiny import SPACE

GREEDY = SamplingSpec(temperature=0.0)
TEXT = list(range(10, 34))  # four blocks and a rest
MAX_IDS = 500


def torch_bench() -> Bench:
    return stepped_bench(FaultyRunner(run_ahead=2))


def port_bench() -> Bench:
    return PortBench().bench()


def new_layout() -> Interleaver:
    layout = Interleaver(SPACE, [1, 2, 3], [SPACE.speech_offset + 5] * 8, max_ids=MAX_IDS)
    layout.push_text(TEXT)
    layout.end_text()
    return layout


def talkative(turn: Turn) -> TurnLimits:
    """The tiny models would rather stop."""
    return replace(turn.limits, forbidden=frozenset(SPACE.specials))


@pytest.mark.parametrize("make", [torch_bench, port_bench], ids=["torch", "tensorrt_llm"])
@pytest.mark.parametrize("failing_turn", [0, 2])
def test_a_session_goes_on_in_a_new_engine(make: Callable[[], Bench], failing_turn: int) -> None:
    whole = make()
    expected = new_layout()
    session = whole.engine.open("a", GREEDY, MAX_IDS)
    turns: list[tuple[Turn, list[int], TurnResult]] = []
    while len(turns) <= failing_turn and (turn := expected.next_turn()) is not None:
        turns.append((turn, *whole.run(session, turn.append_ids, talkative(turn))))
        expected.turn_ended(*turns[-1][1:])
    whole.engine.close()

    layout, broken = new_layout(), make()
    session = broken.engine.open("a", GREEDY, MAX_IDS)
    for _ in range(failing_turn):
        turn = layout.next_turn()
        assert turn is not None
        layout.turn_ended(*broken.run(session, turn.append_ids, talkative(turn)))
    turn, sink = layout.next_turn(), RecordingSink()
    assert turn is not None
    session.turn(turn.append_ids, talkative(turn), sink)
    for _ in range(3):
        broken.advance()
    broken.fail()
    broken.drive([sink])
    assert sink.result is not None and sink.result.end is TurnEnd.ERROR and not broken.engine.healthy
    layout.turn_ended(sink.ids, sink.result)
    broken.engine.close()

    _, ids, result = turns[failing_turn]
    assert 0 < len(sink.ids) < len(ids) and sink.ids == ids[: len(sink.ids)]
    fresh = make()
    session = fresh.engine.open("a", GREEDY, MAX_IDS)
    rest = replace(talkative(turn), max_new_ids=turn.limits.max_new_ids - len(sink.ids))
    assert fresh.run(session, layout.ledger, rest) == (ids[len(sink.ids) :], result)
    assert [*layout.ledger, *ids[len(sink.ids) :]] == expected.ledger
    fresh.engine.close()
