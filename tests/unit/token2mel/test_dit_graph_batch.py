"""Packing of the DiT's spans: which slot each stored page has, what each tile sees, and which sizes are recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.token2mel.batching import Span
from bistream.token2mel.graphs.batch import BatchSize, IntArray32
from bistream.token2mel.graphs.dit_batch import FEW_PAGES, FEW_TILES, MOST_PAGES, SlotLayout, batch_sizes
from bistream.token2mel.graphs.recorded import TILES
from bistream.token2mel.page_pool import FIRST_PAGE, SCRATCH_PAGE, ZERO_PAGE
from tests.unit.token2mel.flow_fixtures import make_prompt

CHUNK, RATIO, SIZE = 50, 2, BatchSize(24, 32)
VOICE = (FIRST_PAGE, FIRST_PAGE + 1)  # pages that several sessions share
PROMPT = make_prompt(30)


def _layout(left: int = 0) -> SlotLayout:
    return SlotLayout(CHUNK, CHUNK, RATIO, left)


@st.composite
def batches(draw: st.DrawFn) -> list[Span]:
    """Spans of sessions of one voice or of their own; some have forgotten a chunk after the voice's."""
    spans: list[Span] = []
    page = FIRST_PAGE + len(VOICE)
    for _ in range(draw(st.integers(1, 5))):
        shared = VOICE if draw(st.booleans()) else ()
        context, length, forgotten = draw(st.integers(0, 3)), draw(st.integers(1, 100)), draw(st.integers(0, 1))
        kept = draw(st.integers(0, length // (CHUNK // RATIO)))
        pages = tuple(range(page, page + context + kept))
        page += len(pages)
        read = (*shared, *pages[:context])
        start = (len(read) + forgotten) * CHUNK // RATIO
        spans.append(Span(range(start + length + 3), start, start + length, PROMPT, read, pages[context:]))
    return spans


def _filled(spans: list[Span], layout: SlotLayout, before: list[Span]) -> dict[str, IntArray32]:
    """The batch's arrays, after they held another batch."""
    arrays = {name: np.zeros(shape, np.int32) for name, shape in layout.array_shapes(SIZE).items()}
    for batch in (before, spans):
        firsts = np.cumsum([0, *(RATIO * span.length for span in batch)])[:-1]
        layout.fill(arrays, batch, firsts.tolist())
    return arrays


@settings(max_examples=25, deadline=None, derandomize=True)
@given(batches(), batches(), st.sampled_from([0, 1, 2]))
def test_every_tile_sees_its_stored_pages_where_they_stand_and_its_own_chunks(spans: list[Span], before: list[Span], left: int) -> None:
    layout = _layout(left)
    arrays = _filled(spans, layout, before)
    tile = 0
    for span in spans:
        first, count = RATIO * span.start, layout.tiles(span)
        stored = [(page, first - (len(span.context_pages) - place) * CHUNK) for place, page in enumerate(span.context_pages)]
        for number in range(count):
            seen = arrays["lists"][tile + number, : arrays["visible"][tile + number]].tolist()
            of_pages = [slot for slot in seen if slot < SIZE.context]
            own = [SIZE.context + tile + earlier for earlier in range(number + 1)]
            everything = [*stored, *own]
            found = [(int(arrays["context"][slot]), int(arrays["context_start"][slot])) for slot in of_pages]
            assert [*found, *seen[len(found) :]] == (everything[-left - 1 :] if left else everything)
            assert arrays["start"][tile + number] == first + number * CHUNK
            kept = span.keep_pages[number] if number < len(span.keep_pages) else SCRATCH_PAGE
            assert arrays["page"][tile + number] == kept
        assert arrays["last"][tile] == (ZERO_PAGE, *span.context_pages)[-1]
        tile += count
    assert not arrays["visible"][tile:].any() and (arrays["page"][tile:] == SCRATCH_PAGE).all(), "dead tiles"


@settings(max_examples=20, deadline=None, derandomize=True)
@given(batches(), batches())
def test_a_page_that_sessions_read_at_one_place_has_one_slot(spans: list[Span], before: list[Span]) -> None:
    layout = _layout()
    arrays = _filled(spans, layout, before)
    used = layout.needs(spans).context
    pairs = list(zip(arrays["context"][:used].tolist(), arrays["context_start"][:used].tolist(), strict=True))
    assert len(set(pairs)) == used == len({page for span in spans for page in layout.stored(span)})
    assert (arrays["context"][used:] == ZERO_PAGE).all() and arrays["used"].tolist() == [used]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(batches(), min_size=1, max_size=4), st.integers(4, 12), st.integers(5, 9))
def test_groups_keep_the_order_and_fit(parts: list[list[Span]], tiles: int, context: int) -> None:
    layout, largest = _layout(), BatchSize(tiles, context)
    spans = [span for part in parts for span in part]
    groups = layout.group(spans, largest)
    assert [index for members in groups for index in members] == list(range(len(spans)))
    for members, following in zip(groups, [*groups[1:], [0]], strict=True):
        members_alone = [spans[index] for index in members]
        assert largest.holds(layout.needs(members_alone)) and all(layout.fits(span, largest) for span in members_alone)
        if following is not groups[0] and following != [0]:
            assert not largest.holds(layout.needs([*members_alone, spans[following[0]]])), "a group ended early"


def test_what_is_larger_than_the_largest_batch_does_not_fit() -> None:
    layout, largest = _layout(), BatchSize(2, 2)
    fitting = Span(range(100), 50, 100, PROMPT, VOICE)
    assert layout.fits(fitting, largest)
    assert not layout.fits(Span(range(100), 49, 100, PROMPT, VOICE), largest), "three tiles"
    assert not layout.fits(Span(range(100), 75, 100, PROMPT, (*VOICE, 9)), largest)
    assert not layout.fits(Span(range(50), 0, 50, PROMPT, streaming=False), largest)


@pytest.mark.parametrize("pages", [1, 8, 9, 100, 5000])
@pytest.mark.parametrize("tiles", [(1,), (2, 16), TILES])
def test_the_last_size_holds_all_and_the_first_that_holds_a_batch_is_not_larger_than_needed(tiles: tuple[int, ...], pages: int) -> None:
    sizes = batch_sizes(tiles, pages)
    assert all(sizes[-1].holds(size) for size in sizes) and len(set(sizes)) == len(sizes)
    assert sizes[-1] == BatchSize(max(tiles), min(pages, MOST_PAGES))
    for count in range(1, max(tiles) + 1):
        for context in {0, 1, min(pages, FEW_PAGES), min(pages, FEW_PAGES + 1), min(pages, MOST_PAGES)}:
            chosen = next(size for size in sizes if size.holds(BatchSize(count, context)))
            assert chosen.tiles == min(size for size in tiles if size >= count)
            assert chosen.context <= FEW_PAGES or context > FEW_PAGES or chosen.tiles > FEW_TILES
