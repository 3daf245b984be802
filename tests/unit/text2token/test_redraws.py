"""Runaways of a session: drawn again with another seed while nobody has heard them, else ended; the text goes on either way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.metrics.catalogue import LM_RUNAWAYS
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.sequence_series import MAX_REDRAWS
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from tests.fakes import TurnView
from tests.recorded import sample
from tests.unit.text2token.test_service import CONFIG, SPACE, TEXT, Bench, Mailbox, ends_in_time, yielded

LONG = replace(CONFIG, max_session_tokens=2000, max_text_chars=4000)


def counted(bench: Bench) -> dict[tuple[str, ...], float]:
    keys = itertools.product(*LM_RUNAWAYS.labels.values())
    return {key: count for key in keys if (count := sample(bench.recorder, "lm_runaways_total", kind=key[0], outcome=key[1]))}


def looping(sequences: int, period: int = 30, ahead: int = 40) -> Callable[[TurnView], Iterator[int]]:
    """In the first ``sequences`` sequences, told apart by seeds, the last turn speaks, then repeats itself for ever; later ones end."""

    def script(view: TurnView) -> Iterator[int]:
        if view.spec.seed >= sequences or view.limits.record_on_length is not None:
            yield from ends_in_time(view)
        speech = [SPACE.speech_offset + (index + 10 * view.spec.seed) % SPACE.speech_token_size for index in range(ahead + period)]
        yield from speech
        yield from itertools.cycle(speech[ahead:])

    return script


def speak(bench: Bench, text: str, seed: int = 0, is_whole: bool = True) -> Mailbox:
    mailbox = bench.start(text if is_whole else "", is_end=is_whole, options=GenerationOptions(seed=seed))
    if not is_whole:
        bench.append(text, is_end=True)
    if bench.pumped:
        bench.engine.pump()
    return mailbox


def consumed(mailbox: Mailbox) -> list[int]:
    return [message.text_consumed for message in mailbox.messages if isinstance(message, SpeechTokens)]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_runaway_is_drawn_again_with_another_seed(tokenizer: TextTokenizer, is_whole: bool) -> None:
    bench = Bench(tokenizer, looping(1), config=LONG)
    mailbox = speak(bench, TEXT, is_whole=is_whole)
    assert mailbox.reason is FinishReason.EOS
    assert counted(bench) == {("loop", "redrawn"): 1}
    first, second = bench.engine.opened
    assert second.spec == replace(first.spec, seed=first.spec.seed + 1)
    assert consumed(mailbox) == sorted(consumed(mailbox)) and consumed(mailbox)[-1] == len(TEXT)
    bench.check_free()


def test_the_redraw_is_told_what_came_before_the_repetition(tokenizer: TextTokenizer) -> None:
    """The listener has heard the first round and a few tokens of the second, which the model is not told of; the limits count them all."""
    ahead, period = 40, 30
    bench = Bench(tokenizer, looping(1, period, ahead), config=LONG)
    mailbox = speak(bench, TEXT)
    (first_ids, first_limits), (second_ids, second_limits) = (session.turns_started[0] for session in bench.engine.opened)
    known = second_ids[len(first_ids) :]
    heard = first_limits.max_new_ids - second_limits.max_new_ids
    assert second_ids[: len(first_ids)] == first_ids
    assert [SPACE.speech_token(token_id) for token_id in known] == yielded(bench.engine.opened[0])[: len(known)]
    assert ahead + period <= len(known) + 5 and len(known) < heard <= ahead + period + 14
    assert second_limits == replace(
        first_limits, max_new_ids=second_limits.max_new_ids, min_new_ids=max(0, first_limits.min_new_ids - heard)
    )
    assert mailbox.tokens == yielded(bench.engine.opened[0])[:heard] + yielded(bench.engine.opened[1])


def test_redraws_are_bounded_and_the_text_goes_on_with_its_next_segment(tokenizer: TextTokenizer) -> None:
    text = TEXT * 20
    bench = Bench(tokenizer, looping(MAX_REDRAWS + 1), config=replace(LONG, max_session_tokens=1000))
    mailbox = speak(bench, text)
    assert mailbox.reason is FinishReason.EOS
    assert consumed(mailbox)[-1] == len(text)
    assert counted(bench) == {("loop", "redrawn"): MAX_REDRAWS, ("loop", "ended"): 1}
    assert len(bench.engine.opened) > MAX_REDRAWS + 1
    bench.check_free()


def test_without_room_for_another_sequence_it_ends(tokenizer: TextTokenizer) -> None:
    bench = Bench(tokenizer, looping(1), config=LONG, pumped=True)
    mailbox = bench.start(TEXT, is_end=True)
    bench.engine.pump(60)
    bench.engine.max_total_ids = 0
    bench.engine.pump()
    assert mailbox.reason is FinishReason.LENGTH
    assert counted(bench) == {("loop", "ended"): 1}
    bench.check_free()


def test_held_tokens_are_spoken_where_the_pause_ends_with_the_text(tokenizer: TextTokenizer) -> None:
    def pauses(view: TurnView) -> Iterator[int]:
        yield from range(SPACE.speech_offset, SPACE.speech_offset + 40)
        yield from [SPACE.speech_offset + 50] * 40
        yield SPACE.eos

    bench = Bench(tokenizer, pauses, config=LONG)
    mailbox = speak(bench, TEXT)
    assert mailbox.reason is FinishReason.EOS and not counted(bench)
    assert mailbox.tokens == [*range(40), *[50] * 40]


def test_a_session_that_is_cancelled_while_tokens_are_held_is_free(tokenizer: TextTokenizer) -> None:
    bench = Bench(tokenizer, looping(100), config=LONG, pumped=True)
    for steps in (60, 85, 100):
        bench.start(TEXT, is_end=True, session_id=str(steps))
        bench.engine.pump(steps)
        bench.service.cancel(str(steps))
        bench.engine.pump()
    bench.check_free()


@settings(max_examples=12)
@given(st.integers(0, 5), st.integers(10, 37), st.integers(0, 60), st.booleans())
def test_equal_text_and_seed_give_equal_tokens(tokenizer: TextTokenizer, runaways: int, period: int, ahead: int, is_whole: bool) -> None:
    """Whatever runs at the same time, and however late a cancel takes effect."""
    found = []
    for pumped in (True, False):
        bench = Bench(tokenizer, looping(runaways, period, ahead), config=LONG, pumped=pumped)
        mailbox = speak(bench, TEXT, is_whole=is_whole)
        found.append((mailbox.tokens, mailbox.reason, counted(bench), [session.spec.seed for session in bench.engine.opened]))
        bench.check_free()
    assert found[0] == found[1]
