"""The choice of kernels by number of rows, and their tiles, as measured on one H200 (``docs/log/gpu.md``)."""

from __future__ import annotations

from dataclasses import dataclass

Tile = tuple[int, int, int, int]  # rows, features, warps, pipeline stages of the loads


@dataclass(frozen=True)
class Tuning:
    """Choices that change the speed but never a result: every kernel adds in the same order."""

    dependent_launch: bool = True
    shared_memory_first: bool = True  # see ``launches.prefer_shared_memory``
    # the kernels for few rows serve at most this many rows, 16 at a time; larger steps use those for many rows
    qkv_small_rows: int = 64
    output_small_rows: int = 64
    gate_up_small_rows: int = 16
    gate_up_large_rows: int = 64  # gate_up_large up to this many rows
    output_tiles: int = 2  # tiles of 8 features per program, from 17 rows on
    gate_up_pairs: int = 5  # tiles of gate and of up per program
    head_tiles: int = 7
    weights_in_flight: int = 2  # copies of 14 kB tiles in flight in gate_up and head, besides the newest
    down_registers: int = 104  # up to 8 rows: leaves room for the kernels before and after
    # attention: stages of 64 kB, and block copies in flight before the wait for the predecessor
    attention: tuple[int, int] = (3, 5)
    attention_64: tuple[int, int] = (2, 4)  # 17 to 64 rows
    attention_many: tuple[int, int] = (1, 3)
    attention_late: bool = False  # its successor starts only when its predecessor has finished
    # qkv_many, output_many, gate_up_many and down_many: stages of 64 columns of the rows, and of weights that do not fit as a whole
    stages: int = 6
    down_stages: int = 4
    gate_up_registers: int = 232
    down_registers_32: int | None = 128  # up to 32 rows, per thread at launch: leaves room for the kernels before and after
    down_patience: int = 64  # see ``kernels_down._shares``
    next_weights_rows: int = 129  # from so many rows on, the MLP's kernels prefetch the next kernel's weights into the L2 cache
    # gate_up_large and head_large
    gate_up_tile: Tile = (64, 32, 4, 3)
    head_tile: Tile = (128, 64, 8, 2)
    head_tile_64: Tile = (64, 64, 4, 3)  # up to 64 rows
    sampler_registers: int = 64  # from 129 rows on: two programs per multiprocessor


MEASURED_BEST = Tuning()
