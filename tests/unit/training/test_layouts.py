"""Training rows have the order in which the served layout feeds the language model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.engine import TokenSpace, TurnEnd, TurnResult
from bistream.text2token.interleave import Interleaver
from training.layouts import IGNORED, aligned_places, can_interleave, interleaved, one_shot

SPACE = TokenSpace(text_vocab_size=50, speech_token_size=30)
TEXTS = st.lists(st.integers(0, 49), min_size=1, max_size=23)
CODES = st.lists(st.integers(0, 29), min_size=1, max_size=120)


def fed_by_the_server(text: list[int], codes: list[int]) -> tuple[list[int], list[int]]:
    """The ids that ``Interleaver`` appends while a model decodes exactly ``codes``, and what it must have sampled after each."""
    layout = Interleaver(SPACE, [], [])
    layout.push_text(text)
    layout.end_text()
    ids, targets, left = list[int](), list[int](), list(codes)
    while (turn := layout.next_turn()) is not None:
        is_block = turn.limits.record_on_length is not None
        count = turn.limits.max_new_ids if is_block else len(left)
        speech, left = left[:count], left[count:]
        ids += [*turn.append_ids, *(code + SPACE.speech_offset for code in speech)]
        stop = SPACE.fill if is_block else SPACE.eos
        targets += [IGNORED] * (len(turn.append_ids) - 1) + [*speech, stop - SPACE.speech_offset]
        result = TurnResult(TurnEnd.LENGTH) if is_block else TurnResult(TurnEnd.STOP, stop_id=SPACE.eos)
        layout.turn_ended([code + SPACE.speech_offset for code in speech], result)
    return ids, targets


@given(TEXTS, CODES)
def test_interleaved_rows_are_the_served_ones(text: list[int], codes: list[int]) -> None:
    if not can_interleave(text, codes):
        codes = codes * (1 + 4 * len(text))
    codes = codes[: 20 * len(text)]  # the server's limit
    assert interleaved(SPACE, text, codes) == fed_by_the_server(text, codes)


@given(TEXTS, CODES)
def test_one_shot(text: list[int], codes: list[int]) -> None:
    ids, targets = one_shot(SPACE, text, codes)
    assert ids == [SPACE.sos, *text, SPACE.task, *(code + SPACE.speech_offset for code in codes)]
    assert [target for target in targets if target != IGNORED] == [*codes, SPACE.speech_token_size]
    assert len(ids) == len(targets) and targets[len(text)] == IGNORED and targets[len(text) + 1] == codes[0]


@given(st.integers(1, 23), st.integers(1, 120), st.booleans())
def test_guided_heads_look_at_the_text_that_is_spoken(text_tokens: int, speech_tokens: int, is_interleaved: bool) -> None:
    text = list(range(text_tokens))
    spoken = np.sort(np.random.default_rng(speech_tokens).integers(0, text_tokens, speech_tokens))
    codes = [int(token) for token in spoken]
    is_interleaved = is_interleaved and can_interleave(text, codes)
    ids, targets = (interleaved if is_interleaved else one_shot)(SPACE, text, codes)
    aligned = aligned_places(spoken, len(text), is_interleaved)
    assert len(aligned) == len(ids)
    order = iter(codes)  # each code says which text it speaks
    for place, (target, at) in enumerate(zip(targets, aligned, strict=True)):
        if target == IGNORED or target >= SPACE.speech_token_size:
            assert at == IGNORED
        else:
            wanted = next(order)
            assert at == IGNORED or (at <= place and ids[at] == wanted)
            assert at != IGNORED or wanted not in ids[1 : place + 1], "the text is there"
