"""Packing of spans into tiles: the rows that every tile computes, reads and stores."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoint_config import EstimatorConfig, FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.graphs.batch import (
    BatchSize,
    IntArray32,
    Layout,
    output_rows,
    rows_per_page,
    scratch_page_count,
    whole_pages,
)
from bistream.token2mel.page_pool import FIRST_PAGE, SCRATCH_PAGE, ZERO_PAGE
from tests.unit.token2mel.flow_fixtures import make_prompt

CHUNK, RATIO, ROWS, TILES = 50, 2, 64, 24
SCRATCH = range(900, 924)
PROMPT = make_prompt(30)


def _layout(left: int = 0, scratch: range = SCRATCH) -> Layout:
    return Layout(CHUNK, ROWS, RATIO, left, scratch)


@st.composite
def batches(draw: st.DrawFn) -> list[Span]:
    """Spans with separate pages; their complete chunks are kept, kept in part or not at all."""
    spans: list[Span] = []
    page = FIRST_PAGE
    for _ in range(draw(st.integers(1, 5))):
        context, length = draw(st.integers(0, 4)), draw(st.integers(1, 100))
        complete = length // (CHUNK // RATIO)
        kept = [draw(st.booleans()) for _ in range(complete)] if draw(st.booleans()) else []
        pages = list(range(page, page + context + complete))
        page += len(pages)
        keep = tuple(number if keeps else SCRATCH_PAGE for number, keeps in zip(pages[context:], kept, strict=False))
        start = context * CHUNK // RATIO
        spans.append(Span(range(start + length + 3), start, start + length, PROMPT, tuple(pages[:context]), keep))
    return spans


def _filled(spans: list[Span], layout: Layout, before: list[Span]) -> dict[str, IntArray32]:
    """The batch's arrays, after they held another batch."""
    arrays = {name: np.zeros(shape, np.int32) for name, shape in layout.array_shapes(BatchSize(TILES)).items()}
    for batch in (before, spans):
        firsts = np.cumsum([0, *(RATIO * span.length for span in batch)])[:-1]
        layout.fill(arrays, batch, firsts.tolist())
    return arrays


@settings(max_examples=20, deadline=None, derandomize=True)
@given(batches(), batches(), st.sampled_from([0, 1, 2]))
def test_every_tile_sees_its_chunk_and_its_left_context(spans: list[Span], before: list[Span], left: int) -> None:
    layout = _layout(left)
    arrays = _filled(spans, layout, before)
    tile = 0
    for span in spans:
        frames = RATIO * span.length
        own: list[int] = []
        for number in range(math.ceil(frames / CHUNK)):
            own.append(int(arrays["page"][tile]))
            everything = [*span.context_pages, *own]
            expected = everything[-left - 1 :] if left else everything
            assert arrays["lists"][tile, : arrays["visible"][tile]].tolist() == expected
            assert arrays["live"][tile] == min(CHUNK, frames - number * CHUNK)
            is_kept = number < len(span.keep_pages) and span.keep_pages[number] != SCRATCH_PAGE
            assert own[-1] == span.keep_pages[number] if is_kept else own[-1] in SCRATCH
            if not is_kept:
                assert arrays["scratch_live"][own[-1] - SCRATCH.start] == arrays["live"][tile]
            assert arrays["previous"][tile] == (tile - 1 if number else -1)
            assert arrays["last"][tile] == (ZERO_PAGE if number or not span.context_pages else span.context_pages[-1])
            tile += 1
    used = arrays["page"][:tile].tolist()
    assert len(set(used)) == tile, "two tiles store to one page"
    assert not set(used) & {page for span in spans for page in span.context_pages}, "a stored page is overwritten"


@settings(max_examples=12, deadline=None, derandomize=True)
@given(batches(), batches())
def test_dead_tiles_see_nothing_and_store_to_unread_pages(spans: list[Span], before: list[Span]) -> None:
    layout = _layout()
    arrays = _filled(spans, layout, before)
    dead = slice(sum(layout.tiles(span) for span in spans), None)
    assert not arrays["visible"][dead].any() and not arrays["live"][dead].any()
    assert (arrays["page"][dead] == SCRATCH_PAGE).all()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(batches())
def test_rows_name_frames_of_their_span_and_every_frame_comes_out_once(spans: list[Span]) -> None:
    layout = _layout()
    arrays = _filled(spans, layout, [])
    rows = output_rows(spans, layout)
    total = RATIO * sum(span.length for span in spans)
    assert arrays["condition"].ravel()[rows].tolist() == list(range(total))
    absolute = [frame for span in spans for frame in range(RATIO * span.start, RATIO * span.end)]
    assert arrays["noise"].ravel()[rows].tolist() == absolute
    tile = first = 0
    for span in spans:  # padding repeats frames of the span itself: no number of another session enters
        condition = arrays["condition"][tile : tile + layout.tiles(span)]
        assert condition.min() == first and condition.max() == first + RATIO * span.length - 1
        tile, first = tile + layout.tiles(span), first + RATIO * span.length


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(batches(), min_size=1, max_size=4), st.integers(4, 12), st.integers(4, 8))
def test_groups_keep_the_order_and_fit(parts: list[list[Span]], max_tiles: int, scratch: int) -> None:
    layout = _layout(scratch=range(900, 900 + scratch))
    spans = [span for part in parts for span in part if layout.scratch(span) <= scratch]
    groups = layout.group(spans, BatchSize(max_tiles))
    assert [index for members in groups for index in members] == list(range(len(spans)))
    for members in groups:
        assert sum(layout.tiles(spans[index]) for index in members) <= max_tiles
        assert sum(layout.scratch(spans[index]) for index in members) <= scratch
    for members, following in zip(groups, groups[1:], strict=False):
        joined = [spans[index] for index in (*members, following[0])]
        tiles, needed = sum(map(layout.tiles, joined)), sum(map(layout.scratch, joined))
        assert tiles > max_tiles or needed > scratch, "a group ended early"


@pytest.mark.parametrize("chunk, rows", [(50, 64), (64, 64), (16, 64), (70, 128)])
def test_pages_are_whole_blocks_of_the_attention(chunk: int, rows: int) -> None:
    assert rows_per_page(dataclasses.replace(FlowConfig(), estimator=EstimatorConfig(static_chunk_size=chunk))) == rows


def test_the_number_of_pages_survives_a_little_more_or_less_free_memory() -> None:
    assert {whole_pages(pages) for pages in range(1600, 1632)} == {1600}
    assert all(whole_pages(pages) == pages for pages in range(1, 320))
    assert [scratch_page_count(pages) for pages in (1, 80, 368, 2000)] == [2, 10, 46, 64]
