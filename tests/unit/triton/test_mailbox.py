"""For any order of posts and takes, every token is taken once, in order, and the end is taken once and last."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import BistreamError, CancelledError, InvalidInputError, UnknownSessionError
from bistream.triton.mailbox import Message, TokenMailbox
from bistream.types import FinishReason, SpeechBreak, SpeechTokens

ENDS: list[Message] = [SpeechTokens((), 9, FinishReason.EOS), SpeechTokens((7, 8), 9, FinishReason.LENGTH), CancelledError("Stopped.")]


def tokens_of(messages: list[Message]) -> list[int]:
    return [token for message in messages if isinstance(message, SpeechTokens) for token in message.token_ids]


def is_end(message: Message) -> bool:
    return isinstance(message, BistreamError) or message.is_final


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=20), st.sampled_from(ENDS), st.integers(1, 8))
def test_every_token_is_taken_once_and_in_order(steps: list[int | None], end: Message, wanted_tokens: int) -> None:
    """None: request; n: n more tokens arrive."""
    mailbox, answers, posted, asked = TokenMailbox(), list[Message](), list[Message](), 0
    for number, step in enumerate(steps):
        if step is None:
            if asked == len(answers):  # like the caller: no second request before the first is answered
                asked += 1
                mailbox.take(answers.append, wanted_tokens)
        else:
            posted.append(SpeechTokens(tuple(100 * number + i for i in range(step)), number))
            mailbox.post(posted[-1])
    assert not mailbox.has_ended
    posted.append(end)
    mailbox.post(end)
    assert mailbox.has_ended
    while not any(is_end(answer) for answer in answers):
        assert asked == len(answers)
        asked += 1
        mailbox.take(answers.append, wanted_tokens)
    assert tokens_of(answers) == tokens_of(posted)
    assert [is_end(answer) for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert all(isinstance(answer, BistreamError) or answer.token_ids or answer.is_final for answer in answers)
    assert mailbox.is_drained
    with pytest.raises(UnknownSessionError):
        mailbox.take(answers.append)


def test_tokens_are_collected_until_there_are_enough() -> None:
    mailbox, answers = TokenMailbox(), list[Message]()
    mailbox.take(answers.append, wanted_tokens=3)
    mailbox.post(SpeechTokens((1, 2)))
    assert answers == []
    mailbox.post(SpeechTokens((3, 4), 5))
    assert answers.pop() == SpeechTokens((1, 2, 3, 4), 5)
    mailbox.take(answers.append, wanted_tokens=3)
    mailbox.post(SpeechTokens((5,)))
    mailbox.post(SpeechTokens((), 6, is_resting=True))
    assert answers.pop() == SpeechTokens((5,), 6, is_resting=True), "none will arrive before more text"
    mailbox.take(answers.append, wanted_tokens=30)
    mailbox.post(SpeechTokens((6,)))
    mailbox.post(SpeechTokens((7, 7), breaks=(SpeechBreak(0, 2, 100),)))
    assert answers.pop() == SpeechTokens((6, 7, 7), breaks=(SpeechBreak(1, 2, 100),)), "a hop ends at a break"
    mailbox.post(SpeechTokens((8,)))
    mailbox.post(SpeechTokens((), is_resting=True))
    mailbox.take(answers.append, wanted_tokens=3)
    assert answers.pop() == SpeechTokens((8,), is_resting=True)
    mailbox.take(answers.append, wanted_tokens=3)
    assert answers == [], "a rest is told once"


def test_a_rest_is_told_also_where_its_tokens_were_taken_before() -> None:
    mailbox, answers = TokenMailbox(), list[Message]()
    mailbox.take(answers.append)
    mailbox.post(SpeechTokens((1,), 2, text_fed=9, text_tokens_fed=3))
    mailbox.take(answers.append, wanted_tokens=10)
    mailbox.post(SpeechTokens((), 2, is_resting=True, text_fed=9, text_tokens_fed=3))
    assert answers == [SpeechTokens((1,), 2, None, False, 9, 3), SpeechTokens((), 2, None, True, 9, 3)]
    mailbox.take(answers.append, wanted_tokens=2)
    mailbox.post(SpeechTokens((2,)))
    mailbox.post(SpeechTokens((), is_resting=True))
    assert answers[-1] == SpeechTokens((2,), is_resting=True), "each rest is told"


def test_only_one_may_wait() -> None:
    mailbox, answers = TokenMailbox(), list[Message]()
    mailbox.take(answers.append)
    with pytest.raises(InvalidInputError):
        mailbox.take(answers.append)
    mailbox.post(SpeechTokens((1,)))
    assert answers == [SpeechTokens((1,))]


def test_a_poster_and_a_taker_lose_nothing() -> None:
    mailbox, answers, count = TokenMailbox(), list[Message](), 2000

    def take() -> None:
        while not answers or not is_end(answers[-1]):
            answered = threading.Event()

            def on_answer(message: SpeechTokens | BistreamError, answered: threading.Event = answered) -> None:
                answers.append(message)
                answered.set()

            mailbox.take(on_answer)
            answered.wait()

    taker = threading.Thread(target=take)
    taker.start()
    for token in range(count):
        mailbox.post(SpeechTokens((token,), token, FinishReason.EOS if token + 1 == count else None))
    taker.join(timeout=240)
    assert tokens_of(answers) == list(range(count))


@pytest.mark.parametrize("ends_early", [False, True])
def test_the_tokens_of_the_first_hop_are_timed_once(ends_early: bool) -> None:
    """From the first token to the answer that completes what the first request wanted, however many answers that takes."""
    now, waits = [5.0], list[float]()
    mailbox = TokenMailbox(lambda: now[0], waits.append)
    mailbox.take(lambda message: None, wanted_tokens=5)
    mailbox.post(SpeechTokens((1, 2)))
    now[0] += 1.0
    mailbox.post(SpeechTokens((3,), is_resting=True))
    assert waits == [], "three of five were taken"
    now[0] += 1.0
    mailbox.take(lambda message: None, wanted_tokens=2)
    mailbox.post(SpeechTokens((4,), 9, FinishReason.EOS) if ends_early else SpeechTokens((4, 5)))
    assert waits == [pytest.approx(2.0)]
    if not ends_early:
        now[0] += 1.0
        mailbox.take(lambda message: None)
        mailbox.post(SpeechTokens((6,)))
        assert len(waits) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12))
def test_breaks_keep_their_places_however_the_messages_are_taken(posts: list[tuple[int, bool, bool]]) -> None:
    """Tokens of a message, whether it is a break, whether it is followed by a request."""
    mailbox, answers, expected, count = TokenMailbox(), list[Message](), list[int](), 0
    for tokens, is_break, is_taken in [*posts, (1, False, True)]:
        if is_break:
            expected.append(count)
        mailbox.post(SpeechTokens((1,) * tokens, breaks=(SpeechBreak(0, tokens, 500),) if is_break and tokens else ()))
        if is_break and not tokens:
            expected.pop()
        count += tokens
        if is_taken and mailbox.num_tokens:
            mailbox.take(answers.append)
    found, before = [], 0
    for answer in answers:
        assert isinstance(answer, SpeechTokens)
        found += [before + one.place for one in answer.breaks]
        before += len(answer.token_ids)
    assert (found, before) == (expected, count)
