"""A long text is spoken in segments as long as the checkpoint speaks well: nothing lost, nothing twice, whatever the cuts of the text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.cut_places import CutPlaces, Place
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import TokenLayout
from bistream.text2token.segments import (
    FASTEST_PACE,
    FIRST,
    LATER_LEAST,
    LATER_MOST,
    LEAST_ROOM,
    SLOWEST_PACE,
    SegmentedLayout,
    SegmentLimits,
)
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason
from tests.formats import SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND
from tests.unit.cuts import pieces_of

SPACE = TokenSpace(600, 120)
WORD, MARK, DOT, DIGIT, COMMA, END = 1, 2, 3, 4, 5, 6
PIECES = {WORD: b" some", MARK: b"!", DOT: b".", DIGIT: b"7", COMMA: b",", END: b"ing"}
PROMPT_TEXT, PROMPT_SPEECH = [11, 12], [SPACE.speech_offset + 1]
LIMITS = SegmentLimits(room=320)  # forty words
TEXTS = st.lists(st.sampled_from([WORD] * 12 + [MARK, DOT, DIGIT, COMMA, END]), min_size=1, max_size=300)
CUTS = st.lists(st.integers(0, 300), max_size=12)


def bytes_of(token_id: int) -> bytes:
    return PIECES[token_id]


LENGTHS = SpeechLengths(bytes_of)


def make_next(text: Sequence[int], speech: Sequence[int]) -> TokenLayout:
    return UnistreamLayout(SPACE, [*PROMPT_TEXT, *text], [*PROMPT_SPEECH, *speech])


def segmented(is_whole: bool) -> SegmentedLayout:
    first = make_next((), ()) if is_whole else Interleaver(SPACE, PROMPT_TEXT, PROMPT_SPEECH)
    return SegmentedLayout(first, LIMITS, CutPlaces(bytes_of), LENGTHS, make_next)


def answer(layout: SegmentedLayout, sequences: list[list[int]], ends_early: bool) -> None:
    """Run all turns that are possible: blocks are filled, the rest ends with eos after three ids for each text token, or with a cut."""
    while (turn := layout.next_turn()) is not None:
        if turn.restarts:
            sequences.append([])
        sequences[-1] += turn.append_ids
        is_block = turn.limits.record_on_length is not None
        count = turn.limits.max_new_ids if is_block else max(1, min(turn.limits.max_new_ids, turn.limits.min_new_ids + 7))
        ids = [SPACE.speech_offset + (len(sequences[-1]) + index) % 100 for index in range(count)]
        sequences[-1] += ids
        is_length = is_block or count == turn.limits.max_new_ids
        ended = TurnResult(TurnEnd.LENGTH) if is_length or ends_early else TurnResult(TurnEnd.STOP, SPACE.eos)
        layout.turn_ended(ids, ended)


def spoken(text: list[int], cuts: list[int], is_whole: bool, ends_early: bool = False) -> tuple[SegmentedLayout, list[list[int]]]:
    layout = segmented(is_whole)
    sequences: list[list[int]] = [[]]
    for piece in pieces_of(text, cuts):
        layout.push_text(piece)
        answer(layout, sequences, ends_early)
        assert layout.finish_reason is None
    layout.end_text()
    answer(layout, sequences, ends_early)
    return layout, sequences


def text_of(sequence: list[int]) -> list[int]:
    return [token for token in sequence if token < 100 and token not in PROMPT_TEXT]


@given(text=TEXTS, cuts=CUTS, is_whole=st.booleans(), ends_early=st.booleans())
def test_every_token_is_spoken_once_and_in_order(text: list[int], cuts: list[int], is_whole: bool, ends_early: bool) -> None:
    layout, sequences = spoken(text, cuts, is_whole, ends_early)
    assert layout.finish_reason in (FinishReason.EOS, FinishReason.LENGTH)
    assert layout.num_text_used == len(text)
    assert spoken(text, [], is_whole, ends_early)[1] == sequences, "segments depend on the text alone"
    rest = list(text)
    before: list[int] = []
    for sequence in sequences:
        part = text_of(sequence)
        if before and part[: len(before)] == before and part[len(before) :] == rest[: len(part) - len(before)]:
            part = part[len(before) :]  # the anchor
        assert part == rest[: len(part)] and part
        rest, before = rest[len(part) :], part
    assert rest == []


@given(text=TEXTS)
def test_segments_are_as_long_as_they_may_be_and_end_with_sentences_unless_these_are_too_long(text: list[int]) -> None:
    segments = segments_of(text)
    assert [token for segment in segments for token in segment] == text
    places = list(map(CutPlaces(bytes_of).before, text))
    begin = 0
    for number, (segment, following) in enumerate(itertools.pairwise(segments)):
        end = begin + len(segment)
        share = LIMITS.share(LENGTHS.ordinary(segment))
        if number == 0:
            assert share >= FIRST[places[end]] and all(
                LIMITS.share(LENGTHS.ordinary(text[:place])) < FIRST[places[place]] for place in range(1, end)
            )
        else:
            assert LATER_LEAST <= share <= LATER_MOST + LIMITS.share(LENGTHS.ordinary(segment[-1:]))
            within = LATER_LEAST * LIMITS.room <= LENGTHS.ordinary(segment)
            assert within and (places[end] is Place.SENTENCE or Place.SENTENCE not in inner_places(text, places, begin, end))
            assert places[end] is not Place.INSIDE_WORD or {Place.WORD, Place.CLAUSE}.isdisjoint(inner_places(text, places, begin, end))
        assert following
        begin = end


def inner_places(text: list[int], places: list[Place], begin: int, end: int) -> set[Place]:
    """Those in a segment that it could have ended at."""
    return {places[place] for place in range(begin + 1, end) if LIMITS.share(LENGTHS.ordinary(text[begin:place])) >= LATER_LEAST}


def segments_of(text: list[int]) -> list[list[int]]:
    layout = segmented(is_whole=True)
    layout.push_text(text)
    layout.end_text()
    return [layout._text, *layout._whole]


@given(num_text=st.integers(1, 400), max_ids=st.integers(4, 120))
def test_a_session_ends_even_where_segments_do_not_fit(num_text: int, max_ids: int) -> None:
    def cramped(anchor_text: Sequence[int], anchor_speech: Sequence[int]) -> TokenLayout:
        return UnistreamLayout(SPACE, [*PROMPT_TEXT, *anchor_text], [*PROMPT_SPEECH, *anchor_speech], max_ids=max_ids)

    layout = SegmentedLayout(cramped((), ()), LIMITS, CutPlaces(bytes_of), LENGTHS, cramped)
    layout.push_text([WORD] * num_text)
    layout.end_text()
    answer(layout, [[]], ends_early=False)
    assert layout.finish_reason is not None


def test_a_short_text_is_spoken_as_without_segments() -> None:
    text = [WORD] * 20 + [MARK]
    _, (sequence,) = spoken(text, [3, 9], is_whole=False)
    bare = Interleaver(SPACE, PROMPT_TEXT, PROMPT_SPEECH)
    bare.push_text(text)
    turn = bare.next_turn()
    assert turn is not None and sequence[: len(turn.append_ids)] == list(turn.append_ids)
    assert turn.limits.max_new_ids == SPEECH_BLOCK_TOKENS - len(PROMPT_SPEECH)


def test_a_later_segment_is_anchored_at_the_one_before_if_that_ended_well_and_both_fit() -> None:
    text = ([WORD] * 9 + [MARK]) * 7
    _, sequences = spoken(text, [], is_whole=True)
    assert [len(text_of(sequence)) for sequence in sequences] == [20, 40, 40, 30]
    speech = [token for token in sequences[0] if SPACE.is_speech(token)]
    task = sequences[1].index(SPACE.task)
    assert sequences[1][task + 1 : task + 1 + len(speech)] == speech
    _, broken = spoken(text, [], is_whole=True, ends_early=True)
    assert [len(text_of(sequence)) for sequence in broken] == [20, 20, 20, 10]
    assert LIMITS.fits(LIMITS.room - 8, LENGTHS.ordinary([WORD])) and not LIMITS.fits(LIMITS.room - 7, LENGTHS.ordinary([WORD]))


@given(
    longest=st.floats(1.0, 600.0),
    max_ids=st.integers(1, 10_000),
    num_ids=st.integers(0, 9000),
    num_speech=st.integers(0, 2000),
    ordinary=st.integers(0, 2000),
)
def test_what_a_sequence_speaks_is_bounded_by_the_training_whatever_its_memory(
    longest: float, max_ids: int, num_ids: int, num_speech: int, ordinary: int
) -> None:
    limits = SegmentLimits.of(longest, max_ids - num_ids, num_speech, ordinary, SPEECH_TOKENS_PER_SECOND)
    tokens = round(longest * SPEECH_TOKENS_PER_SECOND)
    assert 1 <= limits.room <= max(tokens, 1)
    assert num_speech + limits.room <= tokens or limits.room <= round(LEAST_ROOM * tokens)
    assert (
        SegmentLimits.of(longest, 2 * max_ids + 2 * tokens, num_speech, ordinary, SPEECH_TOKENS_PER_SECOND).room
        == SegmentLimits.of(longest, 10**6, num_speech, ordinary, SPEECH_TOKENS_PER_SECOND).room
    )
    assert FASTEST_PACE <= limits.pace <= SLOWEST_PACE
    assert limits.pace == 1.0 or min(num_speech, ordinary) > 0


def test_a_slow_voice_gets_less_text() -> None:
    slow, fast = (SegmentLimits.of(30.0, 3796, num_speech, 200, SPEECH_TOKENS_PER_SECOND) for num_speech in (300, 120))
    assert slow.pace > 1.0 > fast.pace and slow.room < fast.room
