"""A batch of spans as packed integer arrays: what the recorded launches read. No torch.

New tokens of all sessions follow one another without padding, and so do their frames. Every array has a fixed place in one
int32 buffer, so that one copy transfers a whole batch to the device. ``runner`` owns two such buffers (host and device).

``BatchArrays`` and the enumerations of fields are the only declaration of the transferred data; kernels take their field offsets
from here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS

if TYPE_CHECKING:
    from torch import Tensor

IntArray32 = NDArray[np.int32]
Shape = tuple[int, ...]
Array = TypeVar("Array")  # one form of an array: its shape, the array on the host or the one on the device
Other = TypeVar("Other")
Buffer = TypeVar("Buffer", IntArray32, "Tensor")


class SessionField(IntEnum):
    """Fields of a session's record, at one rate."""

    FIRST_ROW = 0
    ROWS = 1  # new ones
    CHUNKS = 2  # stored ones


class TileField(IntEnum):
    """Fields of a tile of one session's rows; a list of tiles begins with its length."""

    SESSION = 0
    FIRST = 1  # row of the session's new part


class ChunkItemField(IntEnum):
    """Fields of a work item of the attention for few rows: a chunk of new frames with a split of its keys."""

    FIRST_ROW = 0
    ROWS = 1
    STORED = 2  # chunks of the session
    CHUNK = 3  # number in the session's new part
    SESSION = 4
    SPLIT = 5
    SPLITS = 6


class WindowItemField(IntEnum):
    """Fields of a work item of the convolutions for few rows: a window of new frames of one session."""

    FIRST_ROW = 0
    FIRST_FRAME = 1  # of the session's new part
    ROWS = 2
    PAGE = 3  # the one before the session's new part


CHUNK_ITEM_NUMBERS = 8  # padded by one: records start on multiples of 32 bytes
WINDOW_ITEM_NUMBERS = len(WindowItemField)
WINDOW_FRAMES = 30  # new frames of one window of a convolution for few rows
TILES_HEAD = 1  # numbers before the first tile of a list
_ALIGNMENT = 16  # in numbers: kernels use wide loads only on arrays that start on a multiple of 64 bytes


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


@dataclass(frozen=True)
class RateArrays(Generic[Array]):
    """Arrays at token or at frame rate; see ``batch_filling._fill_rows`` for those of each row."""

    live: Array  # [1], rows of this call
    session: Array  # [sessions, SessionField]
    tiles: Array  # [1 + 2 * tiles], of the encoder's attention: their number, then TileField of each, session by session
    index: Array  # [rows]
    last: Array
    keep: Array
    tail: Array
    position: Array


@dataclass(frozen=True)
class BatchArrays(Generic[Array]):
    """Every array of a batch. ``batch_filling`` documents the contents."""

    tokens: RateArrays[Array]
    frames: RateArrays[Array]
    table: Array  # [sessions, chunks], page of each stored chunk
    widened: Array  # [1], number of pages that the estimator's attention reads
    widened_page: Array  # [pages], each of them once
    widened_table: Array  # [sessions, chunks], place of each stored chunk among those
    estimator_tiles: Array  # as ``RateArrays.tiles``, of the estimator's attention for many rows, the longest first
    chunk_items: Array  # [1]
    chunk_item: Array  # [items, CHUNK_ITEM_NUMBERS]
    frame_splits: Array  # [frames]
    window_items: Array  # [1]
    window_item: Array  # [items, WINDOW_ITEM_NUMBERS]
    frame_session: Array  # [frames]
    frame_noise: Array  # row of the noise
    frame_free: Array  # row of the table of ``first_step``
    ids: Array
    present: Array
    lookahead_window: Array
    lookahead_exists: Array
    history_window: Array
    centre: Array

    def map(self, function: Callable[[Array], Other]) -> BatchArrays[Other]:
        """``function`` of every array, in the order of declaration."""
        mapped: BatchArrays[Other] = _map(function, self)
        return mapped

    def __iter__(self) -> Iterator[Array]:
        return iter(_leaves(self))


def _map(function: Callable[[Any], Any], node: Any) -> Any:
    if not isinstance(node, BatchArrays | RateArrays):
        return function(node)
    return type(node)(**{field.name: _map(function, getattr(node, field.name)) for field in dataclasses.fields(node)})


def _leaves(node: Any) -> list[Any]:
    if not isinstance(node, BatchArrays | RateArrays):
        return [node]
    return [leaf for field in dataclasses.fields(node) for leaf in _leaves(getattr(node, field.name))]


def batch_shapes(bucket: Bucket, tiles: TileSizes, config: FlowConfig, pages: int) -> BatchArrays[Shape]:
    """The shape of every array of a batch. pages: that there are in all."""
    tokens, sessions = bucket.tokens, bucket.sessions
    frames = tokens * config.token_mel_ratio
    extended = tokens + sessions * LOOKAHEAD_HISTORY_TOKENS
    lookahead = config.pre_lookahead_len

    def at_rate(rows: int, tile: int) -> RateArrays[Shape]:
        of_row = {name: (rows,) for name in ("index", "last", "keep", "tail", "position")}
        return RateArrays(live=(1,), session=(sessions, len(SessionField)), tiles=tile_list(rows, tile), **of_row)

    def tile_list(rows: int, tile: int) -> Shape:
        return (TILES_HEAD + len(TileField) * max_tiles(rows, tile, sessions),)

    chunk_items = max(tiles.key_items, max_tiles(frames, config.estimator.static_chunk_size, sessions))
    return BatchArrays(
        tokens=at_rate(tokens, tiles.tokens),
        frames=at_rate(frames, tiles.frames),
        table=(sessions, table_chunks(config)),
        widened=(1,),
        widened_page=(widened_pages(bucket, config, pages),),
        widened_table=(sessions, table_chunks(config)),
        estimator_tiles=tile_list(frames, tiles.estimator),
        chunk_items=(1,),
        chunk_item=(chunk_items, CHUNK_ITEM_NUMBERS),
        frame_splits=(frames,),
        window_items=(1,),
        window_item=(max_tiles(frames, WINDOW_FRAMES, sessions), WINDOW_ITEM_NUMBERS),
        frame_session=(frames,),
        frame_noise=(frames,),
        frame_free=(frames,),
        ids=(extended + sessions * lookahead,),
        present=(extended + sessions * lookahead,),
        lookahead_window=(extended, lookahead + 1),
        lookahead_exists=(extended,),
        history_window=(tokens, LOOKAHEAD_HISTORY_TOKENS + 1),
        centre=(tokens,),
    )


def table_chunks(config: FlowConfig) -> int:
    """Width of a session's page table: chunks of the longest possible sequence."""
    return -(-MAX_FRAMES // config.estimator.static_chunk_size)


def widened_pages(bucket: Bucket, config: FlowConfig, pages: int) -> int:
    """Most pages that a batch reads."""
    return min(pages, bucket.sessions * table_chunks(config))


def max_tiles(rows: int, tile: int, sessions: int) -> int:
    """Most tiles needed to cover ``rows`` rows of up to ``sessions`` sessions; each session's last tile may be partly filled."""
    return rows // tile + sessions


def batch_size(shapes: BatchArrays[Shape]) -> int:
    """Length of the whole buffer, in numbers."""
    return sum(_padded(shape) for shape in shapes)


def views(buffer: Buffer, shapes: BatchArrays[Shape]) -> BatchArrays[Buffer]:
    """The arrays of one buffer, one after another, each on a multiple of ``_ALIGNMENT``."""
    end = 0

    def take(shape: Shape) -> Buffer:
        nonlocal end
        begin, end = end, end + _padded(shape)
        return buffer[begin : begin + math.prod(shape)].reshape(shape)

    return shapes.map(take)


def _padded(shape: Shape) -> int:
    return -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
