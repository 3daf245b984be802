"""When a turn asks again, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.engine import TurnEnd, TurnLimits
from bistream.text2token.tensorrt_llm.turn_rules import MOST_REJECTIONS, TurnRules
from tests.unit.text2token.tiny import SPACE

SPEECH = SPACE.speech_offset
STOPS = st.frozensets(st.sampled_from(SPACE.specials))
ANSWER = st.tuples(st.lists(st.integers(SPEECH, SPACE.eos - 1), max_size=6), st.sampled_from([None, *SPACE.specials]))


@given(
    max_new=st.integers(1, 30), least=st.integers(0, 12), forbidden=STOPS, early=STOPS, answers=st.lists(ANSWER, min_size=1, max_size=20)
)
def test_a_turn_never_exceeds_its_limits(
    max_new: int, least: int, forbidden: frozenset[int], early: frozenset[int], answers: Sequence[tuple[list[int], int | None]]
) -> None:
    """Whatever the requests answer within what they were asked."""
    turn = TurnRules(SPACE, TurnLimits(1 << 30, least, forbidden, early), max_new)
    yielded: list[int] = []
    for ids, stop_id in answers:
        request = turn.next_request()
        assert 1 <= request.max_tokens <= max_new - len(yielded)
        answer = ids[: request.max_tokens]
        if stop_id is not None and len(answer) < request.max_tokens:
            answer = [*answer, stop_id]
        accepted, stop = turn.accept(answer)
        yielded += accepted
        assert turn.num_new == len(yielded) <= max_new
        allowed = stop is not None and stop not in forbidden and (len(yielded) >= least or stop not in early)
        result = turn.ended(stop)
        if result is None:
            assert len(yielded) < max_new and (stop is None or not allowed)
            continue
        if result.end is TurnEnd.STOP:
            assert result.stop_id == stop and allowed
        else:
            assert result.end is TurnEnd.LENGTH and len(yielded) == max_new or turn.num_rejected > MOST_REJECTIONS
        break
