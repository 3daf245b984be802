"""Breaks of SSML between speech tokens: where they are depends on the text alone, and each part is spoken to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.silence import BREAK_TOKENS, SilenceThinning
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from tests.unit.cuts import pieces_of
from tests.unit.text2token.test_service import SPACE, Bench, Mailbox, ends_in_time

SSML = GenerationOptions(text_type="ssml")
WORDS = st.lists(st.sampled_from("the weather was clear so we walked along, river. 5 ...".split()), max_size=6).map(" ".join)
TEXTS = st.lists(st.one_of(WORDS, st.integers(1, 3000)), min_size=1, max_size=7)
CUTS = st.lists(st.integers(0, 400), max_size=10)
Heard = tuple[int, ...] | int  # speech tokens, or milliseconds of silence


def ssml_of(parts: list[str | int]) -> str:
    return "<speak>" + "".join(part if isinstance(part, str) else f'<break time="{part}ms"/>' for part in parts) + "</speak>"


def heard(mailbox: Mailbox) -> list[Heard]:
    """Speech and silence in turn."""
    found: list[Heard] = []
    for message in mailbox.messages:
        assert isinstance(message, SpeechTokens)
        if message.breaks:
            (one,) = message.breaks
            assert (one.place, one.tokens) == (0, len(message.token_ids)) == (0, BREAK_TOKENS)
            found.append(one.silence_ms)
        elif found and isinstance(found[-1], tuple):
            found[-1] += message.token_ids
        elif message.token_ids:
            found.append(message.token_ids)
    return found


def spoken(tokenizer: TextTokenizer, pieces: list[str], pumps: list[int]) -> tuple[Bench, Mailbox]:
    bench = Bench(tokenizer, ends_in_time, pumped=True)
    bench.service._config = replace(bench.config, max_text_chars=4000)
    mailbox = bench.start(options=SSML)
    for index, piece in enumerate(pieces):
        bench.append(piece, is_end=index == len(pieces) - 1)
        bench.engine.pump(pumps[index % len(pumps)])
    bench.engine.pump()
    return bench, mailbox


def is_spoken(part: str | int) -> bool:
    return isinstance(part, str) and any(map(str.isalnum, part))


@given(parts=TEXTS, cuts=CUTS, pumps=st.lists(st.integers(0, 30), min_size=3, max_size=8))
@settings(max_examples=10)
def test_speech_and_silence_depend_on_the_text_alone(
    tokenizer: TextTokenizer, parts: list[str | int], cuts: list[int], pumps: list[int]
) -> None:
    text = ssml_of(parts)
    whole, expected = spoken(tokenizer, [text], [1000])
    cut, mailbox = spoken(tokenizer, pieces_of(text, cuts), pumps)
    assert heard(mailbox) == heard(expected)
    assert mailbox.reason is expected.reason is not None
    assert [one.sequence for one in cut.engine.opened] == [one.sequence for one in whole.engine.opened]
    for bench in (whole, cut):
        bench.check_free()


@given(parts=TEXTS)
@settings(max_examples=10)
def test_every_break_is_where_it_was_asked_for(tokenizer: TextTokenizer, parts: list[str | int]) -> None:
    """Marks alone are not spoken."""
    said = [part for part in parts if not isinstance(part, str) or is_spoken(part)]
    expected = [one for one, before in zip(said, [0, *said], strict=False) if isinstance(one, int) or isinstance(before, int)]
    _, mailbox = spoken(tokenizer, [ssml_of(parts)], [1000])
    assert [isinstance(one, int) and one for one in heard(mailbox)] == [isinstance(one, int) and one for one in expected]
    last = mailbox.messages[-1]
    assert isinstance(last, SpeechTokens) and (not is_spoken(said[-1] if said else "") or last.text_consumed == len(ssml_of(parts)))


def test_a_part_is_spoken_as_a_text_of_its_own(tokenizer: TextTokenizer) -> None:
    bench, mailbox = spoken(tokenizer, ['The weather was clear. <break time="1s"/> So we walked.'], [1000])
    alone = Bench(tokenizer, ends_in_time)
    for name, text in (("a", "The weather was clear."), ("b", "So we walked.")):
        alone.start(text, session_id=name)
        alone.append("", is_end=True, session_id=name)
    appended = [[[ids for ids, _ in one.turns_started] for one in each.engine.opened] for each in (bench, alone)]
    assert appended[0] == appended[1]
    assert heard(mailbox)[1] == 1000


def test_a_break_is_told_before_the_text_behind_it_comes(tokenizer: TextTokenizer) -> None:
    bench = Bench(tokenizer, ends_in_time)
    mailbox = bench.start('The weather was clear. <break time="300ms"/>', options=SSML)
    assert heard(mailbox)[1:] == [300]
    last = mailbox.messages[-1]
    assert isinstance(last, SpeechTokens) and last.is_resting
    bench.append("So we walked along the river.", is_end=True)
    assert len(heard(mailbox)) == 3 and mailbox.reason is FinishReason.EOS


def test_text_without_markup_has_the_same_tokens(tokenizer: TextTokenizer) -> None:
    texts = []
    for options in (SSML, GenerationOptions()):
        bench = Bench(tokenizer, ends_in_time)
        mailbox = bench.start("The weather was clear, so we walked along the river.", options=options)
        bench.append("", is_end=True)
        texts.append((mailbox.messages, bench.engine.opened[0].sequence))
    assert texts[0] == texts[1]


def test_wrong_ssml_ends_the_session(tokenizer: TextTokenizer) -> None:
    """The front models refuse it before; the session goes on there."""
    bench = Bench(tokenizer, ends_in_time)
    mailbox = bench.start("<speak>One", options=SSML)
    with pytest.raises(InvalidInputError, match="well-formed"):
        bench.append(" & two")
    assert isinstance(mailbox.error, InvalidInputError)
    bench.check_free()


def test_a_break_is_filled_with_silence_or_with_what_was_said_last() -> None:
    assert SilenceThinning(frozenset({7, 3})).filling() == (3,) * BREAK_TOKENS
    thinning = SilenceThinning(frozenset(), last_token=5)
    assert thinning.filling() == (5,) * BREAK_TOKENS
    thinning.push((1, 2))
    assert thinning.filling() == (2,) * BREAK_TOKENS
    assert SPACE.is_speech(SPACE.speech_offset)
