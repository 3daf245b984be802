"""Grouping and padding of spans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.errors import EngineError
from bistream.token2mel.batching import MIN_FILL, Buckets, PackedArrays, Span, batch_shape, group_spans, pack, without_context
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.stage import FlowHop
from tests.unit.token2mel.flow_fixtures import EXACT, make_prompt, make_stage, make_tokens

PROMPT = make_prompt(30)
CHUNK = 25


def _span(length: int, streaming: bool = True, context: int = 0) -> Span:
    return Span(range(length + 3), 0, length, PROMPT, context_pages=tuple(range(10, 10 + context)), streaming=streaming)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 200), st.booleans(), st.integers(0, 8)), max_size=20), st.integers(100, 2000))
def test_groups_hold_every_span_once_and_waste_little(shapes: list[tuple[int, bool, int]], max_tokens: int) -> None:
    spans = [_span(*shape) for shape in shapes]
    groups = group_spans(spans, CHUNK, max_tokens)
    assert sorted(index for group in groups for index in group) == list(range(len(spans)))
    for group in groups:
        lengths = [spans[index].length for index in group]
        chunks = max(len(spans[index].context_pages) for index in group)
        assert len({spans[index].streaming for index in group}) == 1
        assert min(lengths) >= MIN_FILL * max(lengths)
        assert len(group) == 1 or len(group) * (max(lengths) + chunks * CHUNK) <= max_tokens


def _pack(*spans: Span, buckets: Buckets | None = None) -> PackedArrays:
    return pack(spans, batch_shape(spans, CHUNK, buckets), lookahead=3, ratio=2, mel_bins=80)


def test_pack_pads_on_the_sides_the_network_expects() -> None:
    first = Span(range(10, 48), 0, 35, PROMPT, keep_pages=(7,))
    second = Span(range(100, 200), 50, 90, PROMPT, context_pages=(3, 4), keep_pages=(8,))
    arrays = _pack(first, second)
    assert arrays.token_ids.shape == (2, 2 + 40 + 3)
    assert arrays.token_ids[0, 2:40].tolist() == list(range(10, 48))
    assert not arrays.present[0, :2].any() and arrays.present[0, 2:40].all() and not arrays.present[0, 40:].any()
    assert arrays.token_ids[1].tolist() == list(range(148, 193)) and arrays.present[1].all()
    assert arrays.context.tolist() == [[ZERO_PAGE, ZERO_PAGE], [3, 4]]
    assert arrays.last.tolist() == [ZERO_PAGE, 4]
    assert arrays.keep.tolist() == [[7], [8]]
    assert arrays.context_chunks.tolist() == [0, 2] and arrays.lengths.tolist() == [35, 40] and arrays.starts.tolist() == [0, 50]
    np.testing.assert_array_equal(arrays.prompt_mel[0, :60], PROMPT.speech_feat)
    assert not arrays.prompt_mel[0, 60:].any() and not arrays.prompt_mel[1].any()
    np.testing.assert_array_equal(arrays.speaker, np.stack([PROMPT.speaker_embedding] * 2))


def test_tokens_after_the_last_known_one_are_absent() -> None:
    arrays = _pack(Span(range(27), 0, 27, PROMPT))
    assert arrays.present[0].tolist() == [False] * 2 + [True] * 27 + [False] * 3
    assert arrays.keep.shape == (1, 0)  # nothing is kept, so nothing is written
    assert _pack(Span(range(53), 0, 50, PROMPT, keep_pages=(SCRATCH_PAGE, 5))).keep.tolist() == [[SCRATCH_PAGE, 5]]


def test_padding_rows_touch_no_page() -> None:
    spans = [Span(range(100), 50, 90, PROMPT, context_pages=(3, 4), keep_pages=(8,))] * 3
    arrays = _pack(*spans, buckets=Buckets(token_step=8, chunk_step=4))
    assert arrays.token_ids.shape == (4, 2 + 40 + 3) and arrays.context.shape == (4, 4) and arrays.keep.shape == (4, 1)
    assert arrays.context[3].tolist() == [ZERO_PAGE] * 4 and arrays.last[3] == ZERO_PAGE and arrays.keep[3] == SCRATCH_PAGE
    assert arrays.lengths[3] == 1 and not arrays.present[3].any()


def test_a_span_without_context_begins_at_the_start_and_keeps_the_same() -> None:
    span = Span(range(100), 50, 90, PROMPT, context_pages=(3, 4), keep_pages=(8,))
    whole = without_context(span, CHUNK)
    assert (whole.start, whole.end, whole.context_pages) == (0, 90, ())
    assert whole.keep_pages == (SCRATCH_PAGE, SCRATCH_PAGE, 8)
    unkept = Span(range(100), 50, 90, PROMPT, context_pages=(3, 4))
    assert without_context(unkept, CHUNK).keep_pages == ()


@pytest.mark.parametrize("left", [0, 2])
def test_a_span_without_context_is_computed_as_with_it(left: int) -> None:
    """Every other hop recomputes everything; the next one reads the state that it keeps."""
    usual, mixed = make_stage(left_context_chunks=left), make_stage(left_context_chunks=left)
    compute, number = mixed.runner.compute, 0

    def computing(spans: Sequence[Span]) -> list[Tensor | EngineError]:
        if number % 2:
            return compute(spans)
        mels = compute([without_context(span, CHUNK) for span in spans])
        return [mel if isinstance(mel, EngineError) else mel[:, 2 * span.start :] for span, mel in zip(spans, mels, strict=True)]

    mixed.runner.compute = computing  # type: ignore[method-assign]
    states = usual.open(PROMPT), mixed.open(PROMPT)
    for number, count in enumerate((18, 70, 33, 60, 7)):
        exact, found = (
            stage.hop([FlowHop(state, make_tokens(count, number), number == 4)])[0]
            for stage, state in zip((usual, mixed), states, strict=True)
        )
        assert isinstance(exact, Tensor) and isinstance(found, Tensor) and exact.shape[1] > 0
        torch.testing.assert_close(found, exact, rtol=0, atol=EXACT)
    for state in states:
        state.close()
