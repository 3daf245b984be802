"""Tiles and row counts of the step's kernels: they change speed, never a result, because every kernel adds in the same order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

ANY = 1 << 30  # rows
CHUNK_UNIT = 128  # columns of K: a chunk is a multiple of it


@dataclass(frozen=True)
class Tile:
    """Of a product of many rows. stages: steps of ``step`` columns in shared memory at a time."""

    rows: int
    features: int
    warps: int = 4
    stages: int = 3
    step: int = 128

    @property
    def shared_bytes(self) -> int:
        return (self.rows + self.features) * self.step * 2 * self.stages


Tiles = tuple[tuple[int, Tile], ...]  # by the most rows of the steps that they serve, ascending


@dataclass(frozen=True)
class Tuning:
    """Measured on an H200 (``docs/log/gpu.md``)."""

    # programs of 16 rows and one warp per chunk of K serve steps of at most so many rows
    qkv_few_rows: int = 32
    output_few_rows: int = 32
    gate_up_few_rows: int = 16
    down_few_rows: int = 16
    head_few_rows: int = 16
    # features of such a program at a time
    output_features: int = 16
    down_features: int = 16
    gate_up_features: int = 16
    head_features: int = 64
    gate_up_tiles: int = 5  # so many times
    qkv: Tiles = ((64, Tile(64, 16, stages=4)), (128, Tile(64, 32, stages=6)), (ANY, Tile(64, 32)))
    output: Tiles = ((64, Tile(64, 16, stages=7)), (ANY, Tile(64, 32, stages=6)))
    gate_up: Tiles = ((64, Tile(64, 64)), (ANY, Tile(64, 128, step=64)))
    down: Tiles = ((64, Tile(64, 64, stages=4)), (ANY, Tile(64, 64, stages=5, step=64)))
    head: Tiles = ((128, Tile(64, 64)), (ANY, Tile(128, 64, step=64)))
    add_rows: int = 8  # rows and features of a program that adds chunks
    add_features: int = 128
    attention_split_rows: int = 32  # in steps of at most so many rows, several programs share a row and key/value head
    attention_programs: int = 4
    sampler_warps: int = 8
    sampler_registers: int = 128  # from 129 rows on: two programs per multiprocessor
    # in steps of at most so many rows a kernel starts while its predecessor runs (from compute capability 9.0 on); in larger ones programs
    # that wait would take the place of those that compute
    dependent_rows: int = 128


class Gpu(NamedTuple):
    """What the launches have to know of a GPU."""

    shared_memory: int  # bytes, of a program
    has_dependent_launch: bool
    has_tensor_memory: bool  # compute capability 10.x

    @staticmethod
    def of(device: torch.device) -> Gpu:
        if device.type != "cuda":
            return Gpu(1 << 30, False, False)
        properties: Any = torch.cuda.get_device_properties(device)
        return Gpu(int(properties.shared_memory_per_block_optin), properties.major >= 9, properties.major == 10)


def tile_for(tiles: Tiles, rows: int, gpu: Gpu) -> Tile:
    """The tile of a step of ``rows`` rows; where shared memory is short, stages, steps, then rows and features shrink.

    With tensor memory a step is a whole chunk: Triton 3.6 fails to compile sums there that are selected after several steps.
    """
    tile = next(tile for most, tile in tiles if rows <= most)
    if gpu.has_tensor_memory:
        tile = replace(tile, step=CHUNK_UNIT)
    while tile.shared_bytes > gpu.shared_memory:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        elif tile.step > 64:
            tile = replace(tile, step=tile.step // 2)
        else:
            tile = replace(tile, rows=max(tile.rows // 2, 16), features=max(tile.features // 2, 16), warps=4)
    return tile
