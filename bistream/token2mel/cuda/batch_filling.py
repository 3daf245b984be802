"""Fills the arrays of ``batch`` with the spans of a call. No torch.

Called by ``runner`` on the host's buffer, which is then transferred to the device in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.cuda.batch import (
    CHUNK_ITEM_NUMBERS,
    TILES_HEAD,
    WINDOW_FRAMES,
    BatchArrays,
    ChunkItemField,
    IntArray32,
    RateArrays,
    SessionField,
    TileField,
    TileSizes,
    WindowItemField,
)
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, LOOKAHEAD_HISTORY_TOKENS, UPSAMPLE_HISTORY_TOKENS, form_offset


def fill(
    arrays: BatchArrays[IntArray32], spans: Sequence[Span], tiles: TileSizes, config: FlowConfig, left_context_chunks: int = 0
) -> None:
    """Write a batch. Entries after the live tokens, frames, sessions, tiles and items keep older values, which are valid indices.

    left_context_chunks: how far attention reaches back; 0: no limit.
    """
    ratio, chunk = config.token_mel_ratio, config.encoder.static_chunk_size
    lengths = np.array([span.length for span in spans], np.int64)
    starts = np.array([span.start for span in spans], np.int64)
    chunks = np.array([len(span.context_pages) for span in spans], np.int64)
    last = np.array([(ZERO_PAGE, *span.context_pages)[-1] for span in spans], np.int64)
    first = np.cumsum(lengths) - lengths
    session, local = _expand(lengths)
    total = len(local)
    for row, span in enumerate(spans):
        arrays.table[row, : len(span.context_pages)] = span.context_pages
    _fill_widened(arrays, spans)
    for at_rate, rate in ((arrays.tokens, 1), (arrays.frames, ratio)):
        at_rate.live[0] = total * rate
        at_rate.session[: len(spans), SessionField.FIRST_ROW] = first * rate
        at_rate.session[: len(spans), SessionField.ROWS] = lengths * rate
        at_rate.session[: len(spans), SessionField.CHUNKS] = chunks
    _fill_longest_first(arrays.estimator_tiles, lengths * ratio, chunks * chunk * ratio, tiles.estimator, chunk * ratio)
    _fill_tiles(arrays.tokens.tiles, lengths, tiles.tokens)
    _fill_tiles(arrays.frames.tiles, lengths * ratio, tiles.frames)
    _fill_chunk_items(arrays, lengths * ratio, chunks, tiles, config.estimator.static_chunk_size, left_context_chunks)
    _fill_window_items(arrays, lengths * ratio, last)
    pages = _kept_pages(spans, total, chunk)
    context = chunks[session] * chunk
    _fill_rows(arrays.tokens, local, last[session], pages, context, chunk, UPSAMPLE_HISTORY_TOKENS)
    frame_local = (local[:, None] * ratio + np.arange(ratio)).ravel()
    frame_session, frame_pages = np.repeat(session, ratio), np.repeat(pages, ratio)
    frame_context = np.repeat(context * ratio, ratio)
    _fill_rows(arrays.frames, frame_local, last[frame_session], frame_pages, frame_context, chunk * ratio, CONV_HISTORY_FRAMES)
    arrays.frame_session[: len(frame_local)] = frame_session
    arrays.frame_noise[: len(frame_local)] = np.minimum(starts[frame_session] * ratio + frame_local, MAX_FRAMES - 1)
    _fill_first_step(arrays.frame_free, (starts[session] + local), (starts + lengths)[session], chunk, ratio)
    _fill_lookahead(arrays, spans, lengths, starts, config.pre_lookahead_len)


def _fill_widened(arrays: BatchArrays[IntArray32], spans: Sequence[Span]) -> None:
    """The pages of all spans, those of a shared prompt once, and the places of each span's."""
    pages, place = np.unique([page for span in spans for page in span.context_pages], return_inverse=True)
    arrays.widened[0] = len(pages)
    arrays.widened_page[: len(pages)] = pages
    first = 0
    for row, span in enumerate(spans):
        count = len(span.context_pages)
        arrays.widened_table[row, :count] = place[first : first + count]
        first += count


def _fill_first_step(out: IntArray32, position: NDArray[np.int64], end: NDArray[np.int64], chunk: int, ratio: int) -> None:
    """Each frame's row in the table of ``first_step``, by its token's position in the sequence and the end of the known tokens."""
    number, within = np.divmod(position, chunk)
    known = np.minimum(chunk, end - number * chunk)
    row = number * form_offset(chunk + 1, ratio) + form_offset(known, ratio) + within * ratio
    out[: ratio * len(row)] = (row[:, None] + np.arange(ratio)).ravel()


def _expand(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Session of each row, and its index within the session."""
    session = np.repeat(np.arange(len(lengths)), lengths)
    return session, np.arange(len(session)) - (np.cumsum(lengths) - lengths)[session]


def _kept_pages(spans: Sequence[Span], total: int, chunk: int) -> NDArray[np.int64]:
    """Page that keeps the state of each new token's chunk, or -1."""
    pages = np.full(total, -1, np.int64)
    first = 0
    for span in spans:
        for index, page in enumerate(span.keep_pages):
            if page != SCRATCH_PAGE:
                pages[first + index * chunk : first + (index + 1) * chunk] = page
        first += span.length
    return pages


def _fill_rows(
    arrays: RateArrays[IntArray32],
    local: NDArray[np.int64],
    last: NDArray[np.int64],
    pages: NDArray[np.int64],
    context: NDArray[np.int64],
    chunk: int,
    history: int,
) -> None:
    """index: row within the session's new part. last: page before it. keep: row of the page memory or -1. tail: row of the tails
    (``history`` per page) or -1. position: distance from the first stored row."""
    rows = len(local)
    within = local % chunk
    is_kept = pages >= 0
    slot = within - (chunk - history)
    arrays.index[:rows] = local
    arrays.last[:rows] = last
    arrays.keep[:rows] = np.where(is_kept, pages * chunk + within, -1)
    arrays.tail[:rows] = np.where(is_kept & (slot >= 0), pages * history + slot, -1)
    arrays.position[:rows] = context + local


def _fill_tiles(out: IntArray32, lengths: NDArray[np.int64], tile: int) -> None:
    """Number of tiles, then session and first row of each, session by session."""
    session, number = _expand(-(-lengths // tile))
    _write_tiles(out, session, number * tile)


def _fill_longest_first(out: IntArray32, lengths: NDArray[np.int64], stored: NDArray[np.int64], tile: int, chunk: int) -> None:
    """The same, the tiles with most work first, so that programs that process several finish together. A tile's work is the number
    of keys before its end, halved if at most half of its rows exist. The order affects speed only."""
    session, number = _expand(-(-lengths // tile))
    first, length = number * tile, lengths[session]
    last_chunk = (np.minimum(first + tile, length) - 1) // chunk
    keys = stored[session] + np.minimum((last_chunk + 1) * chunk, length)
    order = np.argsort(-keys * np.where(length - first > tile // 2, 2, 1), kind="stable")
    _write_tiles(out, session[order], first[order])


def _write_tiles(out: IntArray32, session: NDArray[np.int64], first: NDArray[np.int64]) -> None:
    count = len(session)
    out[0] = count
    tiles = out[TILES_HEAD : TILES_HEAD + len(TileField) * count].reshape(count, len(TileField))
    tiles[:, TileField.SESSION] = session
    tiles[:, TileField.FIRST] = first


def _fill_chunk_items(
    arrays: BatchArrays[IntArray32],
    lengths: NDArray[np.int64],
    stored: NDArray[np.int64],
    tiles: TileSizes,
    chunk: int,
    left_context_chunks: int,
) -> None:
    """chunk_items: their number. chunk_item: ``ChunkItemField`` of each, session by session. frame_splits: of each row, the number
    of splits that have keys."""
    session, number = _expand(-(-lengths // chunk))
    splits = max(1, min(tiles.key_splits, tiles.key_items // len(session)))
    first = (np.cumsum(lengths) - lengths)[session] + number * chunk
    rows = np.minimum(lengths[session] - number * chunk, chunk)
    items = len(session) * splits
    arrays.chunk_items[0] = items
    out = arrays.chunk_item[:items].reshape(len(session), splits, CHUNK_ITEM_NUMBERS)
    out[:, :, ChunkItemField.FIRST_ROW] = first[:, None]
    out[:, :, ChunkItemField.ROWS] = rows[:, None]
    out[:, :, ChunkItemField.STORED] = stored[session][:, None]
    out[:, :, ChunkItemField.CHUNK] = number[:, None]
    out[:, :, ChunkItemField.SESSION] = session[:, None]
    out[:, :, ChunkItemField.SPLIT] = np.arange(splits)
    out[:, :, ChunkItemField.SPLITS] = splits
    keys = stored[session] + number + 1
    if left_context_chunks:
        keys = np.minimum(keys, left_context_chunks + 1)
    arrays.frame_splits[: lengths.sum()] = np.repeat(np.minimum(keys, splits), rows)


def _fill_window_items(arrays: BatchArrays[IntArray32], lengths: NDArray[np.int64], last: NDArray[np.int64]) -> None:
    """window_items: their number. window_item: ``WindowItemField`` of each, session by session."""
    session, number = _expand(-(-lengths // WINDOW_FRAMES))
    frame = number * WINDOW_FRAMES
    first = (np.cumsum(lengths) - lengths)[session] + frame
    rows = np.minimum(lengths[session] - frame, WINDOW_FRAMES)
    arrays.window_items[0] = len(session)
    out = arrays.window_item[: len(session)]
    out[:, WindowItemField.FIRST_ROW] = first
    out[:, WindowItemField.FIRST_FRAME] = frame
    out[:, WindowItemField.ROWS] = rows
    out[:, WindowItemField.PAGE] = last[session]


def _fill_lookahead(
    arrays: BatchArrays[IntArray32], spans: Sequence[Span], lengths: NDArray[np.int64], starts: NDArray[np.int64], lookahead: int
) -> None:
    """Token vectors of each span with history and lookahead, and the windows of the two lookahead convolutions over them.

    ids, present: [history + length + lookahead] of each span in turn; an absent token reads as a zero vector.
    lookahead_window: vectors under the first convolution at each of [history + length]; lookahead_exists: 0 before the start.
    history_window: results of the first convolution under the second; centre: vector of the token itself.
    """
    history = LOOKAHEAD_HISTORY_TOKENS
    vectors = lengths + history + lookahead
    first_vector = np.cumsum(vectors) - vectors
    arrays.present[: vectors.sum()] = 0
    for row, span in enumerate(spans):
        begin = max(0, span.start - history)
        end = min(len(span.tokens), span.end + lookahead)
        at = int(first_vector[row]) + begin - (span.start - history)
        arrays.ids[at : at + end - begin] = span.tokens[begin:end]
        arrays.present[at : at + end - begin] = 1
    session, local = _expand(lengths + history)
    first_mixed = np.cumsum(lengths + history) - (lengths + history)
    mixed = len(local)
    arrays.lookahead_window[:mixed] = (first_vector[session] + local)[:, None] + np.arange(lookahead + 1)
    arrays.lookahead_exists[:mixed] = starts[session] + local >= history
    session, local = _expand(lengths)
    arrays.history_window[: len(local)] = (first_mixed[session] + local)[:, None] + np.arange(history + 1)
    arrays.centre[: len(local)] = first_vector[session] + local + history
