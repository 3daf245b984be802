"""Sizes of the work of one program in each kernel, per range of rows. They change speed only. No torch.

Chosen by measurement on one H200 at full size; ``docs/log.md`` has the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.token2mel.cuda.layout import Bucket, TileSizes

Tile = tuple[int, int, int, int, int]  # rows, features, depth step, pipeline stages, warps


@dataclass(frozen=True)
class Tuning:
    """few: rows are spread over many programs and LayerNorm is computed where it is used; otherwise whole rows are computed at
    once, with the next LayerNorm, by ``estimator_many`` where the sizes fit.
    fused: the estimator by ``estimator_few`` where the sizes fit; what stands here is then for the encoder and for other sizes.
    attention: frames, keys, splits, stages, warps (``kernels_attention_large``: of each of its three groups).
    query, value: rows, stages, warps."""

    few: bool
    fused: bool
    attention: tuple[int, int, int, int, int]
    query: tuple[int, int, int]
    value: tuple[int, int, int]
    output: Tile
    linear_in: Tile
    linear_out: Tile
    conv: Tile
    residual: Tile
    activate: tuple[int, int]  # rows, warps
    encoder_tile: Tile
    dependent_launch: bool


FEW = Tuning(
    few=True,
    fused=True,
    attention=(8, 64, 5, 1, 4),
    query=(16, 1, 4),
    value=(16, 1, 8),
    output=(16, 16, 0, 1, 8),
    linear_in=(16, 64, 0, 1, 4),
    linear_out=(16, 16, 0, 1, 8),
    conv=(16, 32, 128, 3, 4),
    residual=(16, 32, 128, 2, 4),
    activate=(4, 4),
    encoder_tile=(16, 32, 128, 3, 4),
    dependent_launch=False,
)
SOME = Tuning(
    few=True,
    fused=False,
    attention=(16, 64, 2, 2, 8),
    query=(64, 1, 4),
    value=(64, 1, 4),
    output=(64, 32, 64, 3, 4),
    linear_in=(64, 64, 0, 1, 4),
    linear_out=(64, 32, 64, 3, 4),
    conv=(32, 64, 64, 3, 4),
    residual=(32, 64, 64, 3, 4),
    activate=(8, 4),
    encoder_tile=(32, 64, 64, 3, 4),
    dependent_launch=True,
)
MANY = Tuning(
    few=False,
    fused=False,
    attention=(16, 64, 1, 1, 4),
    query=(64, 3, 4),
    value=(64, 1, 4),
    output=(64, 256, 64, 3, 8),
    linear_in=(64, 128, 64, 3, 4),
    linear_out=(64, 256, 64, 3, 8),
    conv=(64, 128, 64, 3, 4),
    residual=(64, 256, 64, 3, 8),
    activate=(16, 4),
    encoder_tile=(64, 64, 64, 3, 4),
    dependent_launch=True,
)

BUCKETS = (
    Bucket(64, 4),
    Bucket(128, 8),
    Bucket(256, 16),
    Bucket(512, 32),
    Bucket(1024, 64),
    Bucket(1664, 64),
    Bucket(2752, 64),
    Bucket(4096, 64),
)
MAX_SMALL_TOKENS = 64
MAX_MEDIUM_TOKENS = 512


def tuning_of(bucket: Bucket) -> Tuning:
    """The sizes for a bucket."""
    if bucket.tokens <= MAX_SMALL_TOKENS:
        return FEW
    return SOME if bucket.tokens <= MAX_MEDIUM_TOKENS else MANY


def tile_sizes(tuning: Tuning) -> TileSizes:
    """Query rows of the attention programs."""
    return TileSizes(tuning.attention[0], 32, 32)
