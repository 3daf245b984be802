"""An instruction before the text, as CosyVoice3 has one in every prompt: whole, before the first block."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.interleave import UnistreamLayout
from tests.unit.cuts import pieces_of
from tests.unit.text2token.test_interleave import CHOOSE, EVERY_ROW, PLACES, PROMPT_SPEECH, PROMPT_TEXT, SPACE, TEXT, Choose, bistream

SERVED = replace(SPACE, rows=COSYVOICE3.rows)
STORED = replace(SPACE, rows=EVERY_ROW)
INSTRUCTION = st.lists(st.integers(0, 999), min_size=1, max_size=30)


@given(instruction=INSTRUCTION, text=TEXT, prompt_text=PROMPT_TEXT, prompt_speech=PROMPT_SPEECH, places=PLACES, choose=CHOOSE)
def test_it_stands_whole_before_the_first_block_and_changes_nothing_else(
    instruction: list[int], text: list[int], prompt_text: list[int], prompt_speech: list[int], places: list[int], choose: Choose
) -> None:
    def of_the_rest(sequence: list[int], stops: list[int]) -> int:
        """The model does not hear the instruction, so that all differences are the layout's."""
        return choose([sequence[0], *sequence[1 + len(instruction) :]], stops)

    plain = bistream([text], choose, prompt_text, prompt_speech, space=SERVED)
    told = bistream(pieces_of(text, places), of_the_rest, prompt_text, prompt_speech, space=SERVED, instruction=instruction)
    assert None not in (plain.layout.finish_reason, told.layout.finish_reason)
    assert told.sequence[: 1 + len(instruction)] == [SERVED.sos, *instruction]
    assert told.sequence[1 + len(instruction) :] == plain.sequence[1:]
    assert [turn.limits for turn in told.turns] == [turn.limits for turn in plain.turns]
    assert told.layout.finish_reason is plain.layout.finish_reason


def test_eos_cannot_come_before_the_least_number_of_tokens() -> None:
    layout = UnistreamLayout(SERVED, [], [])
    layout.push_text([1, 2, 3])
    layout.end_text()
    turn = layout.next_turn()
    assert turn is not None and turn.limits.min_new_ids == 6
    assert turn.limits.forbidden_early == {SERVED.eos}
    assert set(SERVED.specials) - turn.limits.forbidden == {SERVED.eos}


def test_no_engine_is_given_an_id_without_a_meaning() -> None:
    assert len(SERVED.specials) == 4 and len(STORED.specials) == 200
    assert {SERVED.sos, SERVED.eos, SERVED.task, SERVED.fill} == set(SERVED.specials) == set(STORED.specials[:4])
    assert [SERVED.sos, SERVED.eos, SERVED.task, SERVED.fill] == list(range(SERVED.first_special, SERVED.size))
