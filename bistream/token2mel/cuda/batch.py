"""A batch of spans as packed integer arrays: what the recorded launches read. No torch.

New tokens of all sessions follow one another without padding, and so do their frames. Every array has a fixed place in one
int32 buffer, so that one copy brings a whole batch to the device. ``runner`` owns two such buffers (host and device).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.config import FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, LOOKAHEAD_HISTORY_TOKENS, UPSAMPLE_HISTORY_TOKENS, form_offset

IntArray32 = NDArray[np.int32]

CHUNK_ITEM_NUMBERS = 8  # see ``_fill_chunk_items``
WINDOW_ITEM_NUMBERS = 4  # see ``_fill_window_items``
WINDOW_FRAMES = 30  # new frames of one window of a convolution for few rows
_ALIGNMENT = 16  # numbers: kernels read wide only what starts on a multiple of 64 bytes


@dataclass(frozen=True)
class Bucket:
    """Capacity of one recorded call: ``tokens`` new tokens of up to ``sessions`` sessions. tokens: a multiple of 64."""

    tokens: int
    sessions: int


@dataclass(frozen=True)
class TileSizes:
    """Query frames of one attention program: of the estimator, and of the encoder at token and at frame rate.

    key_items, key_splits: how keys are split for few rows, see ``tuning.FewTiles``.
    """

    estimator: int
    tokens: int
    frames: int
    key_items: int
    key_splits: int


def segment_sizes(bucket: Bucket, tiles: TileSizes, config: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a batch. Their meaning is in ``fill``."""
    tokens, sessions = bucket.tokens, bucket.sessions
    frames = tokens * config.token_mel_ratio
    extended = tokens + sessions * LOOKAHEAD_HISTORY_TOKENS
    lookahead = config.pre_lookahead_len
    return {
        "live_tokens": (1,),
        "live_frames": (1,),
        "session_tokens": (sessions, 3),
        "session_frames": (sessions, 3),
        "table": (sessions, table_chunks(config)),
        "tiles_estimator": (1 + 2 * max_tiles(frames, tiles.estimator, sessions),),
        "chunk_items": (1,),
        "chunk_item": (max(tiles.key_items, max_tiles(frames, config.estimator.static_chunk_size, sessions)), CHUNK_ITEM_NUMBERS),
        "frame_splits": (frames,),
        "window_items": (1,),
        "window_item": (max_tiles(frames, WINDOW_FRAMES, sessions), WINDOW_ITEM_NUMBERS),
        "tiles_tokens": (1 + 2 * max_tiles(tokens, tiles.tokens, sessions),),
        "tiles_frames": (1 + 2 * max_tiles(frames, tiles.frames, sessions),),
        **{f"token_{name}": (tokens,) for name in ("index", "last", "keep", "tail", "position")},
        **{f"frame_{name}": (frames,) for name in ("index", "last", "keep", "tail", "position", "session", "noise", "free")},
        "ids": (extended + sessions * lookahead,),
        "present": (extended + sessions * lookahead,),
        "lookahead_window": (extended, lookahead + 1),
        "lookahead_exists": (extended,),
        "history_window": (tokens, LOOKAHEAD_HISTORY_TOKENS + 1),
        "centre": (tokens,),
    }


def table_chunks(config: FlowConfig) -> int:
    """Width of a session's page table: chunks of the longest sequence there is."""
    return -(-MAX_FRAMES // config.estimator.static_chunk_size)


def max_tiles(rows: int, tile: int, sessions: int) -> int:
    """Tiles that cover ``rows`` rows of up to ``sessions`` sessions, each session's last tile perhaps partly filled."""
    return rows // tile + sessions


def segment_offsets(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Where each array begins, and the size of the whole buffer."""
    offsets, end = {}, 0
    for name, shape in shapes.items():
        offsets[name] = end
        end += -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def views(buffer: IntArray32, shapes: dict[str, tuple[int, ...]]) -> dict[str, IntArray32]:
    """The arrays of one buffer by name."""
    offsets, _ = segment_offsets(shapes)
    return {name: buffer[offsets[name] : offsets[name] + math.prod(shape)].reshape(shape) for name, shape in shapes.items()}


def fill(arrays: dict[str, IntArray32], spans: Sequence[Span], tiles: TileSizes, config: FlowConfig, left_context_chunks: int = 0) -> None:
    """Write a batch. What lies behind the live tokens, frames, sessions, tiles and items keeps older numbers, which are valid indices.

    left_context_chunks: how far attention reaches back; 0: everything.
    """
    ratio, chunk = config.token_mel_ratio, config.encoder.static_chunk_size
    lengths = np.array([span.length for span in spans], np.int64)
    starts = np.array([span.start for span in spans], np.int64)
    chunks = np.array([len(span.context_pages) for span in spans], np.int64)
    last = np.array([(ZERO_PAGE, *span.context_pages)[-1] for span in spans], np.int64)
    first = np.cumsum(lengths) - lengths
    session, local = _expand(lengths)
    total = len(local)
    arrays["live_tokens"][0] = total
    arrays["live_frames"][0] = total * ratio
    for row, span in enumerate(spans):
        arrays["table"][row, : len(span.context_pages)] = span.context_pages
    for name, rate in (("tokens", 1), ("frames", ratio)):
        for column, values in enumerate((first * rate, lengths * rate, chunks)):
            arrays[f"session_{name}"][: len(spans), column] = values
    _fill_longest_first(arrays["tiles_estimator"], lengths * ratio, chunks * chunk * ratio, tiles.estimator, chunk * ratio)
    _fill_tiles(arrays["tiles_tokens"], lengths, tiles.tokens)
    _fill_tiles(arrays["tiles_frames"], lengths * ratio, tiles.frames)
    _fill_chunk_items(arrays, lengths * ratio, chunks, tiles, config.estimator.static_chunk_size, left_context_chunks)
    _fill_window_items(arrays, lengths * ratio, last)
    pages = _kept_pages(spans, total, chunk)
    context = chunks[session] * chunk
    _fill_rows(arrays, "token", local, last[session], pages, context, chunk, UPSAMPLE_HISTORY_TOKENS)
    frame_local = (local[:, None] * ratio + np.arange(ratio)).ravel()
    frame_session, frame_pages = np.repeat(session, ratio), np.repeat(pages, ratio)
    frame_context = np.repeat(context * ratio, ratio)
    _fill_rows(arrays, "frame", frame_local, last[frame_session], frame_pages, frame_context, chunk * ratio, CONV_HISTORY_FRAMES)
    arrays["frame_session"][: len(frame_local)] = frame_session
    arrays["frame_noise"][: len(frame_local)] = np.minimum(starts[frame_session] * ratio + frame_local, MAX_FRAMES - 1)
    _fill_first_step(arrays["frame_free"], (starts[session] + local), (starts + lengths)[session], chunk, ratio)
    _fill_lookahead(arrays, spans, lengths, starts, config.pre_lookahead_len)


def _fill_first_step(out: IntArray32, position: NDArray[np.int64], end: NDArray[np.int64], chunk: int, ratio: int) -> None:
    """Each frame's row in the table of ``first_step``, by its token's place in the sequence and the end of what is known of that."""
    number, within = np.divmod(position, chunk)
    known = np.minimum(chunk, end - number * chunk)
    row = number * form_offset(chunk + 1, ratio) + form_offset(known, ratio) + within * ratio
    out[: ratio * len(row)] = (row[:, None] + np.arange(ratio)).ravel()


def _expand(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Session of each row, and its number within the session."""
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
    arrays: dict[str, IntArray32],
    rate: str,
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
    arrays[f"{rate}_index"][:rows] = local
    arrays[f"{rate}_last"][:rows] = last
    arrays[f"{rate}_keep"][:rows] = np.where(is_kept, pages * chunk + within, -1)
    arrays[f"{rate}_tail"][:rows] = np.where(is_kept & (slot >= 0), pages * history + slot, -1)
    arrays[f"{rate}_position"][:rows] = context + local


def _fill_tiles(out: IntArray32, lengths: NDArray[np.int64], tile: int) -> None:
    """Number of tiles, then session and first row of each, the sessions in turn."""
    session, number = _expand(-(-lengths // tile))
    _write_tiles(out, session, number * tile)


def _fill_longest_first(out: IntArray32, lengths: NDArray[np.int64], stored: NDArray[np.int64], tile: int, chunk: int) -> None:
    """The same, the tiles with most work first: programs that take several in turn end together. A tile's work is the number of
    keys before its end, half of that if at most half of its rows exist. The order changes speed only."""
    session, number = _expand(-(-lengths // tile))
    first, length = number * tile, lengths[session]
    last_chunk = (np.minimum(first + tile, length) - 1) // chunk
    keys = stored[session] + np.minimum((last_chunk + 1) * chunk, length)
    order = np.argsort(-keys * np.where(length - first > tile // 2, 2, 1), kind="stable")
    _write_tiles(out, session[order], first[order])


def _write_tiles(out: IntArray32, session: NDArray[np.int64], first: NDArray[np.int64]) -> None:
    count = len(session)
    out[0] = count
    out[1 : 1 + 2 * count : 2] = session
    out[2 : 2 + 2 * count : 2] = first


def _fill_chunk_items(
    arrays: dict[str, IntArray32],
    lengths: NDArray[np.int64],
    stored: NDArray[np.int64],
    tiles: TileSizes,
    chunk: int,
    left_context_chunks: int,
) -> None:
    """Work of the attention for few rows: a chunk of new frames with a split of its keys, the sessions in turn.

    chunk_items: how many. chunk_item: first row, rows, stored chunks of the session, number of the chunk in the session's new part,
    session, split, splits. frame_splits: of each row, the splits that have keys.
    """
    session, number = _expand(-(-lengths // chunk))
    splits = max(1, min(tiles.key_splits, tiles.key_items // len(session)))
    first = (np.cumsum(lengths) - lengths)[session] + number * chunk
    rows = np.minimum(lengths[session] - number * chunk, chunk)
    items = len(session) * splits
    arrays["chunk_items"][0] = items
    out = arrays["chunk_item"][:items].reshape(len(session), splits, CHUNK_ITEM_NUMBERS)
    for column, values in enumerate((first, rows, stored[session], number, session)):
        out[:, :, column] = values[:, None]
    out[:, :, 5] = np.arange(splits)
    out[:, :, 6] = splits
    keys = stored[session] + number + 1
    if left_context_chunks:
        keys = np.minimum(keys, left_context_chunks + 1)
    arrays["frame_splits"][: lengths.sum()] = np.repeat(np.minimum(keys, splits), rows)


def _fill_window_items(arrays: dict[str, IntArray32], lengths: NDArray[np.int64], last: NDArray[np.int64]) -> None:
    """Windows of the convolutions for few rows, the sessions in turn. window_items: how many. window_item: first row, its frame in the
    session's new part, rows, the page before the new part."""
    session, number = _expand(-(-lengths // WINDOW_FRAMES))
    frame = number * WINDOW_FRAMES
    first = (np.cumsum(lengths) - lengths)[session] + frame
    rows = np.minimum(lengths[session] - frame, WINDOW_FRAMES)
    arrays["window_items"][0] = len(session)
    for column, values in enumerate((first, frame, rows, last[session])):
        arrays["window_item"][: len(session), column] = values


def _fill_lookahead(
    arrays: dict[str, IntArray32], spans: Sequence[Span], lengths: NDArray[np.int64], starts: NDArray[np.int64], lookahead: int
) -> None:
    """Token vectors of each span with history and lookahead, and the windows of the two lookahead convolutions over them.

    ids, present: [history + length + lookahead] of each span in turn, absent ones stand for zero vectors.
    lookahead_window: vectors under the first convolution at each of [history + length]; lookahead_exists: not before the start.
    history_window: results of the first convolution under the second; centre: vector of the token itself.
    """
    history = LOOKAHEAD_HISTORY_TOKENS
    vectors = lengths + history + lookahead
    first_vector = np.cumsum(vectors) - vectors
    arrays["present"][: vectors.sum()] = 0
    for row, span in enumerate(spans):
        begin = max(0, span.start - history)
        end = min(len(span.tokens), span.end + lookahead)
        at = int(first_vector[row]) + begin - (span.start - history)
        arrays["ids"][at : at + end - begin] = span.tokens[begin:end]
        arrays["present"][at : at + end - begin] = 1
    session, local = _expand(lengths + history)
    first_mixed = np.cumsum(lengths + history) - (lengths + history)
    mixed = len(local)
    arrays["lookahead_window"][:mixed] = (first_vector[session] + local)[:, None] + np.arange(lookahead + 1)
    arrays["lookahead_exists"][:mixed] = starts[session] + local >= history
    session, local = _expand(lengths)
    arrays["history_window"][: len(local)] = (first_mixed[session] + local)[:, None] + np.arange(history + 1)
    arrays["centre"][: len(local)] = first_vector[session] + local + history
