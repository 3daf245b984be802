"""The host side of the GPU runner: packed arrays, buckets and tiles, repacked weights."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bistream.token2mel.batching import Span
from bistream.token2mel.cuda.batch import TILES_HEAD, BatchArrays, Bucket, IntArray32, TileField, TileSizes, batch_shapes, batch_size, views
from bistream.token2mel.cuda.batch_filling import fill
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from tests.unit.token2mel.flow_fixtures import TINY, make_prompt, make_tokens

CHUNK = TINY.encoder.static_chunk_size
TILES = TileSizes(16, 32, 32, key_items=8, key_splits=8)
BUCKET = Bucket(320, 6)
PAGES = 40


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Sessions at random positions: stored chunks, some of a common prompt, known tokens after the span, kept chunks."""
    found, page = [], 4
    for number in range(draw(st.integers(1, BUCKET.sessions))):
        chunks, length, known = draw(st.integers(0, 4)), draw(st.integers(1, 52)), draw(st.integers(0, 5))
        prefix = (2, 3)[: draw(st.integers(0, 2))]
        context = prefix + tuple(range(page, page + chunks))
        kept = tuple(draw(st.sampled_from([SCRATCH_PAGE, page + chunks + index])) for index in range(draw(st.integers(0, length // CHUNK))))
        page += chunks + length // CHUNK
        start = len(context) * CHUNK
        sequence = make_tokens(start + length + known, seed=number)
        found.append(Span(sequence, start, start + length, make_prompt(3, number), context, kept))
    return found


def packed(batch: list[Span]) -> BatchArrays[IntArray32]:
    shapes = batch_shapes(BUCKET, TILES, TINY, PAGES)
    arrays = views(np.zeros(batch_size(shapes), np.int32), shapes)
    fill(arrays, batch, TILES, TINY)
    return arrays


def free_row(span: Span, frame: int) -> int:
    """By definition: all forms of earlier chunks, the shorter forms of its own chunk, its position there."""
    chunk, place = divmod(frame, 2 * CHUNK)
    known = min(CHUNK, span.end - chunk * CHUNK)
    return chunk * sum(2 * tokens for tokens in range(1, CHUNK + 1)) + sum(2 * tokens for tokens in range(1, known)) + place


@given(spans())
def test_every_row_knows_its_place(batch: list[Span]) -> None:
    arrays = packed(batch)
    row = 0
    for number, span in enumerate(batch):
        chunks = len(span.context_pages)
        assert arrays.tokens.session[number].tolist() == [row, span.length, chunks]
        assert arrays.frames.session[number].tolist() == [2 * row, 2 * span.length, chunks]
        assert arrays.table[number, :chunks].tolist() == list(span.context_pages)
        assert arrays.widened_page[arrays.widened_table[number, :chunks]].tolist() == list(span.context_pages)
        for local in range(span.length):
            page = span.keep_pages[local // CHUNK] if local // CHUNK < len(span.keep_pages) else SCRATCH_PAGE
            within = local % CHUNK
            is_kept = page != SCRATCH_PAGE
            assert arrays.tokens.index[row + local] == local
            assert arrays.tokens.last[row + local] == (span.context_pages or (ZERO_PAGE,))[-1]
            assert arrays.tokens.keep[row + local] == (page * CHUNK + within if is_kept else -1)
            assert arrays.tokens.tail[row + local] == (2 * page + within - (CHUNK - 2) if is_kept and within >= CHUNK - 2 else -1)
            assert arrays.tokens.position[row + local] == chunks * CHUNK + local
            for frame in (2 * local, 2 * local + 1):
                at, within_frame = 2 * row + frame, frame % (2 * CHUNK)
                assert arrays.frames.index[at] == frame and arrays.frame_session[at] == number
                assert arrays.frames.keep[at] == (page * 2 * CHUNK + within_frame if is_kept else -1)
                assert arrays.frame_noise[at] == 2 * span.start + frame
                assert arrays.frame_free[at] == free_row(span, 2 * span.start + frame)
        row += span.length
    assert arrays.tokens.live[0] == row and arrays.frames.live[0] == 2 * row
    read = arrays.widened_page[: arrays.widened[0]].tolist()
    assert sorted(read) == sorted({page for span in batch for page in span.context_pages}), "each page once"


@given(spans())
def test_tiles_cover_every_frame_once(batch: list[Span]) -> None:
    arrays = packed(batch)
    for tiles, size, rate in ((arrays.estimator_tiles, 16, 2), (arrays.tokens.tiles, 32, 1), (arrays.frames.tiles, 32, 2)):
        found = listed(tiles)
        expected = [[number, first] for number, span in enumerate(batch) for first in range(0, rate * span.length, size)]
        assert (sorted(found) if tiles is arrays.estimator_tiles else found) == expected


def listed(tiles: IntArray32) -> list[list[int]]:
    """Session and first row of each tile of a list."""
    rows: list[list[int]] = tiles[TILES_HEAD : TILES_HEAD + len(TileField) * tiles[0]].reshape(-1, len(TileField)).tolist()
    assert (TileField.SESSION, TileField.FIRST) == (0, 1)
    return rows


@given(spans())
def test_lookahead_windows_show_the_right_tokens(batch: list[Span]) -> None:
    """Each token's windows, followed back to token ids, are its neighbours; None where there is no token."""
    arrays = packed(batch)

    def token(vector: int) -> int | None:
        return int(arrays.ids[vector]) if arrays.present[vector] else None

    row = 0
    for span in batch:
        known = dict(enumerate(span.tokens))
        for local in range(span.length):
            position = span.start + local
            assert token(arrays.centre[row]) == known[position]
            for back, mixed in zip((2, 1, 0), arrays.history_window[row], strict=True):
                assert bool(arrays.lookahead_exists[mixed]) == (position - back >= 0)
                seen = [token(vector) for vector in arrays.lookahead_window[mixed]]
                assert seen == [known.get(position - back + ahead) for ahead in range(TINY.pre_lookahead_len + 1)]
            row += 1
