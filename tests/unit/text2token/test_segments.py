"""A long text is spoken in segments that end with sentences: nothing lost, nothing twice, whatever the cuts of the text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.rates import SPEECH_BLOCK_TOKENS
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Layout
from bistream.text2token.segments import LATER_SENTENCE, SegmentedLayout, SegmentLimits, SentenceEnds
from bistream.types import FinishReason

SPACE = TokenSpace(600, 120)
WORD, MARK, DOT, DIGIT = 1, 2, 3, 4
ENDS = SentenceEnds(frozenset({MARK}), frozenset({DOT}), frozenset({DIGIT}))
PROMPT_TEXT, PROMPT_SPEECH = [11, 12], [SPACE.speech_offset + 1]
LIMITS = SegmentLimits(first=40, later=60, max_anchor_ids=300)
TEXTS = st.lists(st.sampled_from([WORD] * 12 + [MARK, DOT, DIGIT]), min_size=1, max_size=300)
CUTS = st.lists(st.integers(0, 300), max_size=12)


def make_next(text: Sequence[int], speech: Sequence[int]) -> Layout:
    return UnistreamLayout(SPACE, [*PROMPT_TEXT, *text], [*PROMPT_SPEECH, *speech])


def segmented(is_whole: bool) -> SegmentedLayout:
    first = make_next((), ()) if is_whole else Interleaver(SPACE, PROMPT_TEXT, PROMPT_SPEECH)
    return SegmentedLayout(first, LIMITS, ENDS, make_next)


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
    ends = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in zip(ends, ends[1:], strict=False):
        layout.push_text(text[start:end])
        answer(layout, sequences, ends_early)
        assert not layout.done
    layout.end_text()
    answer(layout, sequences, ends_early)
    return layout, sequences


def text_of(sequence: list[int]) -> list[int]:
    return [token for token in sequence if token < 100 and token not in PROMPT_TEXT]


@given(text=TEXTS, cuts=CUTS, is_whole=st.booleans(), ends_early=st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_token_is_spoken_once_and_in_order(text: list[int], cuts: list[int], is_whole: bool, ends_early: bool) -> None:
    layout, sequences = spoken(text, cuts, is_whole, ends_early)
    assert layout.done and layout.finish_reason in (FinishReason.EOS, FinishReason.LENGTH)
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
@settings(max_examples=100, deadline=None)
def test_segments_end_with_sentences_unless_these_are_too_long(text: list[int]) -> None:
    layout = segmented(is_whole=True)
    layout.push_text(text)
    layout.end_text()
    lengths = [layout._num_first, *map(len, layout._whole)]
    assert sum(lengths) == len(text)
    position = 0
    for index, length in enumerate(lengths[:-1]):
        position += length
        least, most = (LIMITS.first * 3 // 4, LIMITS.first) if index == 0 else (LATER_SENTENCE, LIMITS.later)
        last, before = text[position - 1], text[position - 2]
        assert length == most or (length >= least and (last == MARK or (last == DOT and before != DIGIT)))


@given(num_text=st.integers(1, 400), max_ids=st.integers(4, 120))
@settings(max_examples=100, deadline=None)
def test_a_session_ends_even_where_segments_do_not_fit(num_text: int, max_ids: int) -> None:
    def cramped(anchor_text: Sequence[int], anchor_speech: Sequence[int]) -> Layout:
        return UnistreamLayout(SPACE, [*PROMPT_TEXT, *anchor_text], [*PROMPT_SPEECH, *anchor_speech], max_ids=max_ids)

    layout = SegmentedLayout(cramped((), ()), LIMITS, ENDS, cramped)
    layout.push_text([WORD] * num_text)
    layout.end_text()
    answer(layout, [[]], ends_early=False)
    assert layout.done


def test_a_short_text_is_spoken_as_without_segments() -> None:
    text = [WORD] * 20 + [MARK]
    _, (sequence,) = spoken(text, [3, 9], is_whole=False)
    bare = Interleaver(SPACE, PROMPT_TEXT, PROMPT_SPEECH)
    bare.push_text(text)
    turn = bare.next_turn()
    assert turn is not None and sequence[: len(turn.append_ids)] == list(turn.append_ids)
    assert turn.limits.max_new_ids == SPEECH_BLOCK_TOKENS - len(PROMPT_SPEECH)


def test_a_later_segment_is_anchored_at_the_one_before_if_that_ended_well() -> None:
    text = ([WORD] * 35 + [MARK]) * 3
    _, sequences = spoken(text, [], is_whole=True)
    assert [len(text_of(sequence)) for sequence in sequences] == [36, 72, 72]
    speech = [token for token in sequences[1] if SPACE.is_speech(token)]
    own = speech[len(PROMPT_SPEECH) + len([token for token in sequences[0] if SPACE.is_speech(token)]) - len(PROMPT_SPEECH) :]
    task = sequences[2].index(SPACE.task)
    assert sequences[2][task + 1 : task + 1 + len(PROMPT_SPEECH) + len(own)] == [*PROMPT_SPEECH, *own]
    _, broken = spoken(text, [], is_whole=True, ends_early=True)
    assert [len(text_of(sequence)) for sequence in broken] == [36, 36, 36]


def test_the_ends_of_sentences_are_found_in_the_vocabulary() -> None:
    ids = {"。": [7], "?": [8], ".": [9], "!\n": [1, 2], "5": [3]}
    ends = SentenceEnds.of(lambda text: ids.get(text, [1, 1]))
    assert (sorted(ends.marks), sorted(ends.dots), sorted(ends.digits)) == ([7, 8], [9], [3])
