"""The hop policy by itself (properties of one decision and of whole sessions) and under load (a simulated server)."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import accumulate

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.families.spark import SPARK
from bistream.hops.policy import HopPolicy
from bistream.hops.progress import DueHop, HopProgress
from bistream.mel2wav.hop_plan import BUCKETS
from bistream.mel2wav.stage import CONTEXT_FRAMES
from tests.formats import (
    AUDIO_FORMAT,
    BLOCKS,
    CHUNK_TOKENS,
    LOOKAHEAD_TOKENS,
    MEL_FRAMES_PER_TOKEN,
    SPEECH_BLOCK_TOKENS,
    SPEECH_TOKENS_PER_SECOND,
    VOCODER_OVERLAP_FRAMES,
)

POLICY = HopPolicy(AUDIO_FORMAT, BLOCKS)
CHUNK_BY_CHUNK = HopPolicy(AUDIO_FORMAT, BLOCKS, max_chunks=1)
JOINING = HopPolicy(AUDIO_FORMAT, BLOCKS, max_chunks=4)
TOKEN_S = 1 / SPEECH_TOKENS_PER_SECOND
FIRST_HOP = POLICY.first_hop_tokens + LOOKAHEAD_TOKENS
NEAREST = CHUNK_TOKENS - 1 + POLICY.min_hop_tokens  # the nearest boundary is never further away


@st.composite
def progresses(draw: st.DrawFn) -> HopProgress:
    """States of a session, whatever the hops before were."""
    sent, speed = draw(st.just(0) | st.integers(12, 400)), draw(st.just(1.0) | st.floats(0.5, 2.0))
    return HopProgress(
        prompt_tokens=draw(st.integers(0, 750)),
        received_tokens=sent + draw(st.integers(0, 80)),
        sent_tokens=sent,
        has_ended=draw(st.booleans()),
        playback_buffer_s=draw(st.floats(0, 20)) if sent else 0.0,
        hop_latency_s=draw(st.floats(0, 2)) if sent else 0.0,
        is_whole=draw(st.booleans()),
        is_resting=draw(st.booleans()),
        next_block_s=draw(st.none() | st.floats(0, 3)),
        block_every_s=draw(st.none() | st.floats(0.1, 3)),
        waited_s=draw(st.floats(0, 1)),
        speed=draw(st.just(speed) | st.floats(0.5, 2.0)),
        start_speed=speed,
    )


@given(progresses())
def test_a_hop_takes_available_tokens_and_few_enough_of_them(progress: HopProgress) -> None:
    due = POLICY.due_hop(progress)
    assert due is not None or not progress.has_ended, "after the end something is always due"
    if due is not None:
        count = due.tokens
        assert 0 <= count <= progress.pending_tokens
        assert count > 0 or (progress.has_ended and progress.pending_tokens == 0)
        assert due.is_final or progress.sent_tokens + count > LOOKAHEAD_TOKENS  # it speaks
        assert not progress.sent_tokens or count <= (POLICY.max_chunks - 1) * CHUNK_TOKENS + NEAREST
        assert not due.is_flush, "an interleaved text is never flushed"


def due_hops(progress: HopProgress) -> list[int]:
    """The next hop and the one after it, as far as they are due."""
    hops: list[int] = []
    while len(hops) < 2 and (count := POLICY.next_hop(progress)) is not None:
        hops.append(count)
        progress = dataclasses.replace(progress, sent_tokens=progress.sent_tokens + count)
    return hops


@given(progresses())
def test_wanted_tokens_are_what_the_next_hop_lacks_and_fewer_make_none(progress: HopProgress) -> None:
    progress = dataclasses.replace(progress, has_ended=False, is_resting=False)

    def later(tokens: int) -> HopProgress:
        return dataclasses.replace(progress, received_tokens=progress.received_tokens + tokens)

    wanted, due = POLICY.wanted_tokens(progress), due_hops(progress)
    assert wanted > 0 and (len(due) == 2 or due_hops(dataclasses.replace(later(wanted), next_block_s=0.0)) != due)
    assert all(due_hops(later(tokens)) == due for tokens in range(1, wanted))


@given(progresses())
def test_slow_speech_fits_the_recorded_calls_of_the_vocoder(progress: HopProgress) -> None:
    """With the frames that it keeps of the hop before. A pause may have left more tokens than a hop has."""
    count = POLICY.next_hop(progress)
    assume(count is not None and not progress.is_resting)
    assert count is not None
    frames = count * MEL_FRAMES_PER_TOKEN / progress.speed + CONTEXT_FRAMES + VOCODER_OVERLAP_FRAMES
    assert frames <= max(bucket.frames for bucket in BUCKETS)


@given(progresses())
def test_a_hop_ends_on_the_grid_unless_it_is_one_of_the_first_two_the_last_or_cut_by_a_pause(progress: HopProgress) -> None:
    due = POLICY.due_hop(progress)
    assume(due is not None and progress.sent_tokens > LOOKAHEAD_TOKENS + 30)
    assert due is not None
    is_cut = progress.is_resting and progress.playback_buffer_s <= POLICY.urgent_buffer_s + progress.hop_latency_s
    spoken = progress.sent_tokens + due.tokens - LOOKAHEAD_TOKENS
    assert due.is_final or is_cut or (progress.prompt_tokens + spoken) % CHUNK_TOKENS == 0


@given(progresses(), st.floats(0.61, 10))
def test_two_blocks_of_a_text_slower_than_speech_go_out_at_once(progress: HopProgress, every_s: float) -> None:
    begun = dataclasses.replace(progress, sent_tokens=0, is_whole=False, block_every_s=every_s / progress.start_speed)
    assume(begun.received_tokens >= FIRST_HOP and POLICY.has_first_tokens(begun))
    assert POLICY.next_hop(begun) is not None
    quick = dataclasses.replace(begun, block_every_s=0.5 / progress.start_speed, next_block_s=None, waited_s=0.0, has_ended=False)
    if quick.received_tokens <= POLICY.next_hop(begun):  # type: ignore[operator]
        assert POLICY.next_hop(quick) is None, "a quicker text is waited for"


@pytest.mark.parametrize("chunks_join", [False, True])
@settings(max_examples=40)
@given(progresses(), st.integers(0, 120))
def test_recheck_is_the_moment_at_which_the_answer_changes(chunks_join: bool, progress: HopProgress, more: int) -> None:
    policy = JOINING if chunks_join else POLICY
    progress = dataclasses.replace(progress, chunks_join=chunks_join, received_tokens=progress.received_tokens + more * chunks_join)
    delay_s = policy.recheck_after_s(progress)
    if delay_s is None:
        dry = dataclasses.replace(progress, playback_buffer_s=0.0, waited_s=10.0)
        assert policy.next_hop(progress) is not None or policy.next_hop(dry) is None
        return
    assert delay_s > 0.0
    assert policy.next_hop(later(progress, delay_s)) is not None
    if delay_s > 0.02:
        assert policy.next_hop(later(progress, delay_s - 0.01)) is None


def later(progress: HopProgress, seconds: float) -> HopProgress:
    expected = None if progress.next_block_s is None else max(0.0, progress.next_block_s - seconds)
    buffer_s = max(0.0, progress.playback_buffer_s - seconds)
    return dataclasses.replace(progress, playback_buffer_s=buffer_s, waited_s=progress.waited_s + seconds, next_block_s=expected)


@pytest.mark.parametrize("prompt_tokens", [0, 37, 50, 750])
def test_first_hop(prompt_tokens: int) -> None:
    def next_hop(received: int, has_ended: bool) -> int | None:
        return POLICY.next_hop(HopProgress(prompt_tokens, received, 0, has_ended))

    assert next_hop(FIRST_HOP - 1, has_ended=False) is None
    assert next_hop(FIRST_HOP, has_ended=False) == FIRST_HOP
    assert next_hop(200, has_ended=False) == FIRST_HOP
    assert next_hop(200, has_ended=True) == FIRST_HOP  # the listener does not wait for all of it
    assert [next_hop(received, has_ended=True) for received in (0, 1, 17)] == [0, 1, 17]


@pytest.mark.parametrize(("prompt_tokens", "first"), [(0, 15), (30, 15), (32, 13), (33, 12), (34, 26), (44, 16), (125, 25)])
def test_the_first_hop_of_a_text_in_pieces_is_one_block_or_two(prompt_tokens: int, first: int) -> None:
    """The prompt's speech fills a part of the first block; the hop takes the lookahead, too."""
    progress = HopProgress(prompt_tokens, 60, 0, False, is_whole=False)
    assert POLICY.next_hop(progress) == first
    assert POLICY.next_hop(dataclasses.replace(progress, received_tokens=first - 1)) is None


@pytest.mark.parametrize(
    ("next_block_s", "waited_s", "is_due"), [(0.0, 0.0, True), (0.25, 0.0, True), (0.3, 0.0, False), (None, 0.0, False), (None, 0.5, True)]
)
def test_one_block_is_spoken_where_the_next_one_is_in_sight(next_block_s: float | None, waited_s: float, is_due: bool) -> None:
    """Twelve tokens, of which the vocoder holds back four, are 0.32 s, less 0.06 s for the hop itself."""
    progress = HopProgress(30, SPEECH_BLOCK_TOKENS, 0, False, is_whole=False, is_resting=True, next_block_s=next_block_s, waited_s=waited_s)
    assert POLICY.next_hop(progress) == (SPEECH_BLOCK_TOKENS if is_due else None)


def boundaries(
    prompt_tokens: int, total: int, is_whole: bool, arrivals: list[int], rests: bool = False, policy: HopPolicy = POLICY
) -> list[int]:
    """Sizes of all hops of a session whose tokens arrive in these portions, as many hops as possible after each."""
    sizes: list[int] = []
    received, number = 0, 0
    while True:
        received = min(total, received + arrivals[number % len(arrivals)])
        number += 1
        for has_ended in (False, True) if received == total and number % 2 else (received == total,):
            while True:
                sent = sum(sizes)
                progress = HopProgress(prompt_tokens, received, sent, has_ended, 0.0, 0.0, is_whole, rests, next_block_s=0.0)
                due = policy.due_hop(progress)
                if due is None:
                    break
                sizes.append(due.tokens)
                if due.is_final:
                    return sizes


@given(st.integers(0, 100), st.integers(0, 400), st.booleans(), st.lists(st.integers(1, 120), min_size=1, max_size=8))
def test_where_hops_end_follows_from_the_number_of_tokens(prompt_tokens: int, total: int, is_whole: bool, arrivals: list[int]) -> None:
    """However the tokens come, and whether the end is known with the last of them or later."""
    expected = boundaries(prompt_tokens, total, is_whole, [1])
    assert boundaries(prompt_tokens, total, is_whole, arrivals) == expected
    assert sum(expected) == total and len(expected) <= 4 + total // CHUNK_TOKENS


@settings(max_examples=12)
@given(st.integers(0, 100), st.integers(0, 500), st.integers(1, 8), st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_hops_of_a_whole_text_grow_with_their_place_alone(prompt_tokens: int, total: int, chunks: int, arrivals: list[int]) -> None:
    policy = HopPolicy(AUDIO_FORMAT, BLOCKS, max_chunks=chunks)
    sizes = boundaries(prompt_tokens, total, True, [1], policy=policy)
    assert boundaries(prompt_tokens, total, True, arrivals, policy=policy) == sizes and sum(sizes) == total
    ends = [end - LOOKAHEAD_TOKENS for end in accumulate(sizes)][:-1]
    plain = [end - LOOKAHEAD_TOKENS for end in accumulate(boundaries(prompt_tokens, total, True, [1], policy=CHUNK_BY_CHUNK))][:-1]
    assert set(ends) <= set(plain), "they leave boundaries out, and move none"
    assert all(
        size <= max(1, min(chunks, (end - size) // 50)) * CHUNK_TOKENS + NEAREST for size, end in zip(sizes[1:], ends[1:], strict=False)
    )
    assert boundaries(prompt_tokens, total, False, [1], policy=policy) == boundaries(prompt_tokens, total, False, [1]), "pieces do not wait"


@given(
    st.integers(0, 100), st.integers(0, 500), st.integers(1, 8), st.booleans(),
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.0, 10.0)), min_size=1, max_size=8),
)  # fmt: skip
def test_chunks_that_join_leave_boundaries_out_and_move_none(
    prompt_tokens: int, total: int, chunks: int, is_whole: bool, arrivals: list[tuple[int, float]]
) -> None:
    """However tokens come and whatever the listener has: samples must not depend on it. Only the last hop may begin earlier."""
    policy, received, ends = HopPolicy(AUDIO_FORMAT, BLOCKS, max_chunks=chunks), 0, [0]
    plain = set(accumulate(boundaries(prompt_tokens, total, is_whole, [1], policy=CHUNK_BY_CHUNK)))
    for number in itertools.count():
        tokens, buffer_s = arrivals[number % len(arrivals)]
        received, has_ended = min(total, received + tokens), received == total
        progress = HopProgress(prompt_tokens, received, ends[-1], has_ended, buffer_s, 0.1, is_whole, chunks_join=True, next_block_s=0.0)
        due = policy.due_hop(progress)
        if due is None:
            continue
        ends.append(ends[-1] + due.tokens)
        if due.is_final:
            break
        assert ends[-1] in plain and (len(ends) < 4 or due.tokens <= (chunks - 1) * CHUNK_TOKENS + NEAREST)
    assert ends[-1] == total


@given(st.integers(6, 100), st.integers(0, 750), st.integers(0, 40), st.floats(0.0, 5.0))
@example(100, 0, 0, 0.0)
def test_the_second_hop_takes_available_tokens_after_a_first_one_of_any_length(
    first_tokens: int, prompt_tokens: int, pending: int, buffer_s: float
) -> None:
    policy = HopPolicy(AUDIO_FORMAT, BLOCKS, first_hop_tokens=first_tokens, max_chunks=4)
    sent = first_tokens + LOOKAHEAD_TOKENS
    count = policy.next_hop(HopProgress(prompt_tokens, sent + pending, sent, False, buffer_s, 0.1, chunks_join=True))
    assert count is None or policy.min_hop_tokens <= count <= min(pending, SPEECH_BLOCK_TOKENS)


@pytest.mark.parametrize(
    ("pending", "buffer_s", "hop"),
    [
        (103, 9.0, 103), (102, 3.3, None), (102, 3.2, 78), (78, 3.2, 78), (77, 3.2, None), (53, 2.1, 53),
        (28, 1.3, None), (28, 1.2, 28), (27, 0.0, None),
    ],
)  # fmt: skip
def test_a_hop_waits_for_four_chunks_only_while_the_listener_has_a_second_for_each_that_is_there(
    pending: int, buffer_s: float, hop: int | None
) -> None:
    """After 300 tokens the next boundary is at 325, 328 with the lookahead. The listener has 0.2 s less when the hop is done."""
    progress = HopProgress(0, 300 + pending, 300, False, buffer_s, 0.2, is_whole=False, chunks_join=True)
    assert JOINING.next_hop(progress) == hop


@given(st.integers(0, 100), st.integers(60, 400), st.integers(40, 300))
def test_a_cut_is_forgotten_after_the_next_hop(prompt_tokens: int, total: int, cut_at: int) -> None:
    """A pause of the text moves one boundary; all that follow are where they were."""
    plain = list(accumulate(boundaries(prompt_tokens, total, False, [1])))
    starved = list(accumulate(boundaries(prompt_tokens, total, False, [cut_at, 1000], rests=True)))
    assert {end for end in plain if end >= cut_at + NEAREST} == {end for end in starved if end >= cut_at + NEAREST}


def test_a_session_that_ends_on_a_boundary_has_an_empty_last_hop() -> None:
    """Otherwise its samples would depend on whether the end is known in time."""
    assert boundaries(50, FIRST_HOP, True, [1]) == boundaries(50, FIRST_HOP, True, [100]) == [FIRST_HOP, 0]


def test_a_pause_of_the_text_is_bridged_with_what_there_is() -> None:
    """30 tokens, then a pause: the rest of them goes out when the listener needs it, not when the text continues."""
    resting = HopProgress(60, received_tokens=45, sent_tokens=33, has_ended=False, playback_buffer_s=0.44, is_whole=False, is_resting=True)
    assert POLICY.next_hop(resting) == 10, "up to the chunk boundary"
    resting = dataclasses.replace(resting, sent_tokens=43, received_tokens=60)
    assert POLICY.next_hop(resting) is None
    delay_s = POLICY.recheck_after_s(resting)
    assert delay_s == pytest.approx(0.44 - POLICY.urgent_buffer_s, abs=1e-3)
    assert POLICY.next_hop(dataclasses.replace(resting, playback_buffer_s=0.1)) == 17
    assert POLICY.next_hop(dataclasses.replace(resting, playback_buffer_s=0.1, is_resting=False)) is None, "its tokens will come"


def test_a_pause_is_bridged_earlier_on_a_slow_server() -> None:
    """A hop that took 0.6 s makes 0.7 s of buffer urgent."""
    calm = HopProgress(60, 60, 43, False, playback_buffer_s=0.7, is_whole=False, is_resting=True)
    assert POLICY.next_hop(calm) is None
    assert POLICY.next_hop(dataclasses.replace(calm, hop_latency_s=0.6)) == 17


# Sentences whose text stands before their speech

SENTENCES = HopPolicy.of(SPARK, RuntimeConfig(first_lookahead_tokens=10))


@st.composite
def sentences(draw: st.DrawFn) -> HopProgress:
    sent = draw(st.just(0) | st.integers(20, 600))
    return HopProgress(
        prompt_tokens=draw(st.integers(0, 750)),
        received_tokens=sent + draw(st.integers(0, 200)),
        sent_tokens=sent,
        has_ended=draw(st.booleans()),
        is_resting=draw(st.booleans()),
        playback_buffer_s=draw(st.floats(0, 20)) if sent else 0.0,
    )


@given(sentences())
def test_a_rest_withholds_nothing(progress: HopProgress) -> None:
    """Hop after hop goes out at once until the sentence is flushed, or the session ended, whatever the listener has."""
    left = dataclasses.replace(progress, is_resting=True)
    for _ in range(12):
        due = SENTENCES.due_hop(left)
        if left.received_tokens == 0 and not left.has_ended:
            assert due is None
            return
        assert due is not None
        assert not (due.is_final and due.is_flush)
        if due.is_flush or due.is_final:
            assert due.tokens == left.pending_tokens
            return
        left = dataclasses.replace(left, sent_tokens=left.sent_tokens + due.tokens)
    raise AssertionError("no end")


@given(sentences())
def test_a_rest_asks_for_no_more_than_the_next_sentence_begins_with(progress: HopProgress) -> None:
    resting = dataclasses.replace(progress, is_resting=True, has_ended=False, received_tokens=progress.received_tokens + 1)
    begun = dataclasses.replace(progress, is_resting=False, has_ended=False, received_tokens=0, sent_tokens=0)
    assert SENTENCES.wanted_tokens(resting) == SENTENCES.wanted_tokens(begun)


def test_the_first_hops_of_a_sentence_wait_for_less() -> None:
    progress = HopProgress(40, received_tokens=21, sent_tokens=0, has_ended=False)
    assert SENTENCES.next_hop(progress) is None and SENTENCES.wanted_tokens(progress) == 1
    assert SENTENCES.next_hop(dataclasses.replace(progress, received_tokens=30)) == 22
    sent, spoken = 0, []
    for lookahead in (10, 25, None, None):
        begun = HopProgress(0, received_tokens=1000, sent_tokens=sent, has_ended=False)
        assert (due := SENTENCES.due_hop(begun)) is not None and due.lookahead_tokens == lookahead
        sent += due.tokens
        spoken.append(sent - (67 if lookahead is None else lookahead))
    assert spoken == [12, 32, 50, 100]
    exact = HopPolicy.of(SPARK, RuntimeConfig(first_lookahead_tokens=67))
    assert exact.due_hop(dataclasses.replace(progress, received_tokens=100)) == DueHop(79)
