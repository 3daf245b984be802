"""Tile sizes of each kernel, per range of rows. They affect speed only. No torch.

Chosen by measurement on one H200 at full size; ``docs/log/gpu.md`` has the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bistream.token2mel.cuda.batch import Bucket, TileSizes

Tile = tuple[int, int, int, int, int]  # rows, features, depth step, pipeline stages, warps
_WIDE_WINDOW = 144 * 1024  # bytes: the weights of 32 features of the widest convolution, and a chunk of its rows
TILE_FRAMES = 16  # of a tile of the estimator's attention, which programs may share
_ENCODER_ROWS = 32  # query rows of an attention program of the encoder


@dataclass(frozen=True)
class FewTiles:
    """For ``launches_few``. Per program, rows: of queries and of joined splits; feed_rows, feed_depth: rows and hidden features of the
    feed-forward; window_features: of the convolutions; attend_rows: of the attention, which has attend_stages - 1 tiles of keys in
    shared memory.

    The keys of a tile are split into at most ``key_splits`` parts, as long as all tiles together have at most ``key_items``.
    """

    rows: int
    feed_rows: int
    window_features: int
    key_items: int
    key_splits: int
    attend_rows: int
    attend_stages: int = 3
    feed_depth: int = 64


def fitting(tiles: FewTiles, shared: int, has_warp_groups: bool) -> FewTiles:
    """The tiles that a GPU has memory and registers for. shared: memory of a program, in bytes. has_warp_groups: four warps share the
    factors of a matrix instruction (compute capability 9.0)."""
    if shared < _WIDE_WINDOW:
        tiles = replace(tiles, window_features=min(tiles.window_features, 16))
    if not has_warp_groups:
        rows, feed_rows, attend_rows = (min(rows, 32) for rows in (tiles.rows, tiles.feed_rows, tiles.attend_rows))
        tiles = replace(tiles, rows=rows, feed_rows=feed_rows, attend_rows=attend_rows)
    return tiles


@dataclass(frozen=True)
class Tuning:
    """few: None for many rows. The rest is for ``launches_many``, attention: frames, keys, pipeline stages, warps; add: features unused."""

    few: FewTiles | None
    encoder_tile: Tile
    attention: tuple[int, int, int, int] = (8, 64, 2, 4)
    conv: Tile = (64, 128, 64, 3, 4)
    residual: Tile = (64, 256, 64, 3, 8)
    values: Tile = (128, 64, 64, 3, 4)
    hidden: Tile = (128, 128, 64, 3, 8)
    add: Tile = (64, 256, 64, 3, 8)
    query: Tile = (64, 64, 64, 3, 4)


FEW = {  # largest number of tokens: tuning
    64: Tuning(FewTiles(16, 16, 16, key_items=8, key_splits=4, attend_rows=64), encoder_tile=(16, 64, 128, 3, 4)),
    128: Tuning(FewTiles(16, 16, 16, key_items=8, key_splits=2, attend_rows=64), encoder_tile=(16, 64, 128, 3, 4)),
    256: Tuning(
        FewTiles(16, 64, 32, key_items=1, key_splits=1, attend_rows=64, attend_stages=2, feed_depth=128), encoder_tile=(64, 64, 64, 3, 4)
    ),
    384: Tuning(FewTiles(64, 64, 32, key_items=1, key_splits=1, attend_rows=64), encoder_tile=(64, 64, 64, 3, 4)),
}
MANY = Tuning(few=None, encoder_tile=(64, 64, 64, 3, 4))

BUCKETS = (
    Bucket(64, 4),
    Bucket(128, 8),
    Bucket(256, 16),
    Bucket(384, 32),
    Bucket(768, 48),
    Bucket(1024, 64),
    Bucket(1664, 64),
    Bucket(2048, 64),
    Bucket(2752, 64),
    Bucket(4096, 64),
)


def tuning_of(bucket: Bucket) -> Tuning:
    """The sizes for a bucket."""
    return next((tuning for tokens, tuning in FEW.items() if bucket.tokens <= tokens), MANY)


def tile_sizes(tuning: Tuning) -> TileSizes:
    """The sizes that determine the work items of a batch."""
    items, splits = (tuning.few.key_items, tuning.few.key_splits) if tuning.few is not None else (1, 1)
    return TileSizes(TILE_FRAMES, _ENCODER_ROWS, _ENCODER_ROWS, items, splits)
