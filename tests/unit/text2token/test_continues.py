"""A session that continues another one: its prompt ends with what was spoken last, at no cost for the first audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.earlier_sessions import KEPT_S
from bistream.metrics.catalogue import LM_CONTINUED
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.layout import Anchor
from bistream.text2token.session_layout import PromptIds, SessionLayouts
from bistream.types import FinishReason, GenerationOptions
from tests.fakes import Script, TurnView, counting_script
from tests.formats import SPEECH_BLOCK_TOKENS
from tests.unit.text2token.test_service import CONFIG, SPACE, TEXT, Bench, Mailbox, ends_in_time

NEXT = "It will be colder, said the man at the mill, once the wind has turned."
TRANSCRIPT = "We met."
TOKENS = st.integers(0, 200)
CUTS = st.lists(st.integers(0, 60), max_size=8)
ALONE, CONTINUES_A = GenerationOptions(), GenerationOptions(continues="a")


def speaks(count: int) -> Script:
    """This many tokens of a text, or as few as are allowed."""

    def script(view: TurnView) -> Iterator[int]:
        spoken = sum(map(SPACE.is_speech, view.sequence))
        for number, token_id in enumerate(counting_script(view)):
            if spoken + number >= count and number >= view.limits.min_new_ids:
                yield SPACE.eos
            yield token_id

    return script


def start(
    bench: Bench,
    text: str,
    cuts: Sequence[int] | None,
    session_id: str,
    voice: int = 0,
    options: GenerationOptions = ALONE,
    ends: bool = True,
) -> Mailbox:
    """cuts: None: the whole text at once. voice: speech tokens of its recording."""
    changes: dict[str, Any] = {"options": options}
    if voice:
        changes |= {"prompt_text": TRANSCRIPT, "prompt_speech_tokens": np.arange(voice, dtype=np.int32)}
    mailbox = bench.start(text if cuts is None else "", is_end=cuts is None, session_id=session_id, **changes)
    if cuts is not None and ends:
        places = [0, *sorted(cut % len(text) for cut in cuts), len(text)]
        for begin, end in zip(places, places[1:], strict=False):
            bench.append(text[begin:end], session_id=session_id)
        bench.append("", is_end=True, session_id=session_id)
    return mailbox


def outcomes(bench: Bench) -> dict[str, float]:
    sample = bench.recorder.registry.get_sample_value
    return {outcome: sample(LM_CONTINUED.name, {"outcome": outcome}) or 0.0 for outcome in LM_CONTINUED.labels["outcome"]}


def test_a_whole_text_follows_text_and_speech_of_the_last_segment(tokenizer: TextTokenizer) -> None:
    bench = Bench(tokenizer, ends_in_time)
    spoken = start(bench, TEXT, None, "a", voice=4)
    start(bench, NEXT, None, "b", voice=4, options=CONTINUES_A)
    first, second = bench.engine.opened
    texts = [*tokenizer.encode(TRANSCRIPT), *tokenizer.encode(TEXT), *tokenizer.encode(NEXT)]
    speech = [SPACE.speech_offset + code for code in (*range(4), *spoken.tokens)]
    assert list(second.turns_started[0][0]) == [SPACE.sos, *texts, SPACE.task, *speech]
    assert outcomes(bench) == {"joined": 1, "left_out": 0, "unknown": 0}
    bench.check_free()


@given(count=st.integers(1, 120), voice=st.integers(0, 80), cuts=CUTS, others=st.integers(0, 2))
def test_the_same_tokens_whatever_the_cuts_and_the_others(
    tokenizer: TextTokenizer, count: int, voice: int, cuts: list[int], others: int
) -> None:
    sequences = []
    for these, crowd in (([], 0), (cuts, others)):
        bench = Bench(tokenizer, speaks(count))
        start(bench, TEXT, these, "a", voice)
        for number in range(crowd):
            bench.start("Somebody else talks.", session_id=f"other{number}")
        begun = len(bench.engine.opened)
        assert start(bench, NEXT, these, "b", voice, CONTINUES_A).reason is FinishReason.EOS
        sequences.append([session.sequence for session in bench.engine.opened[begun:]])
    assert sequences[0] == sequences[1]


@given(count=st.integers(1, 120), voice=st.integers(0, 80))
def test_the_first_audio_of_pieces_waits_for_no_more_text(tokenizer: TextTokenizer, count: int, voice: int) -> None:
    heard = []
    for options in (CONTINUES_A, ALONE):
        bench = Bench(tokenizer, speaks(count))
        start(bench, TEXT, None, "a", voice)
        mailbox = start(bench, "", [], "b", voice, options, ends=False)
        counts = []
        for character in NEXT:
            bench.append(character, session_id="b")
            counts.append(len(mailbox.tokens))
        heard.append(counts)
    assert all(continued >= alone for continued, alone in zip(*heard, strict=True))


@given(prompt=st.tuples(TOKENS, TOKENS), anchor=st.tuples(TOKENS, TOKENS), is_whole=st.booleans())
def test_an_anchor_takes_part_of_the_room_and_leaves_blocks_where_they_were(
    tokenizer: TextTokenizer, prompt: tuple[int, int], anchor: tuple[int, int], is_whole: bool
) -> None:
    layouts = SessionLayouts(Bench(tokenizer).parts, 4096)
    before = PromptIds((7,), [1] * prompt[0], [2] * prompt[1])
    given_anchor = Anchor([3] * anchor[0], [4] * anchor[1])
    first = layouts.beginning(before, is_whole, given_anchor)
    room = layouts.positions(before, 1000, is_whole=False) - before.count - 2
    if first is None:
        return
    assert first.instruction == before.instruction and given_anchor.count < room / 2
    assert first.text[len(first.text) - anchor[0] :] == given_anchor.text
    if is_whole:
        assert first.speech == [*before.speech, *given_anchor.speech]
    else:
        assert len(first.speech) % SPEECH_BLOCK_TOKENS == len(before.speech) % SPEECH_BLOCK_TOKENS
        assert 0 <= anchor[1] - len(first.speech) < SPEECH_BLOCK_TOKENS and set(first.speech) == {4}
        assert layouts.awaited_text(first) <= layouts.awaited_text(before)


@pytest.mark.parametrize("age_s", [0.0, KEPT_S, KEPT_S + 0.1])
def test_an_earlier_session_is_forgotten_after_a_minute(tokenizer: TextTokenizer, age_s: float) -> None:
    bench = Bench(tokenizer, ends_in_time)
    start(bench, TEXT, None, "a")
    bench.now = age_s
    start(bench, NEXT, None, "b", options=CONTINUES_A)
    is_known = bench.engine.opened[1].sequence[1] != tokenizer.encode(NEXT)[0]
    assert is_known == (age_s <= KEPT_S)
    assert outcomes(bench) == {"joined": float(is_known), "left_out": 0, "unknown": float(not is_known)}


@pytest.mark.parametrize("script", [ends_in_time, counting_script])
def test_what_was_cancelled_or_cut_off_is_not_continued(tokenizer: TextTokenizer, script: Script) -> None:
    bench = Bench(tokenizer, script, config=replace(CONFIG, runaway_s=0.0))
    if script is counting_script:
        assert start(bench, TEXT, None, "a").reason is FinishReason.LENGTH
    else:
        bench.start(TEXT, session_id="a")
        bench.service.cancel("a")
    start(bench, NEXT, None, "b", options=CONTINUES_A)
    assert outcomes(bench)["unknown"] == 1
