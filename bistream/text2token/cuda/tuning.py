"""Which kernels serve which number of rows, and their tiles, as measured on one H200 (``docs/log.md``)."""

from __future__ import annotations

from dataclasses import dataclass

Tile = tuple[int, int, int, int]  # rows, features, warps, stages of the load pipeline


@dataclass(frozen=True)
class Tuning:
    """Choices that change speed only, never a number: every kernel adds in the same order."""

    dependent_launch: bool = True
    shared_memory_first: bool = True  # see ``launches.prefer_shared_memory``
    # the kernels for few rows serve up to this many rows, 16 at a time; beyond, those for many
    qkv_small_rows: int = 64
    output_small_rows: int = 64
    gate_up_small_rows: int = 16
    gate_up_large_rows: int = 64  # gate_up_large up to this many rows
    output_tiles: int = 2  # tiles of 8 features per program, 17 and more rows
    gate_up_pairs: int = 5  # tiles of gate and of up per program
    head_tiles: int = 7
    weights_in_flight: int = 2  # tiles of 14 kB that gate_up and head load at a time
    down_registers: int = 104  # up to 8 rows: leaves room for the kernels before and after
    # attention: stages of 64 kB, blocks that it loads at a time before its turn
    attention: tuple[int, int] = (3, 5)
    attention_64: tuple[int, int] = (2, 4)  # 17 to 64 rows
    attention_many: tuple[int, int] = (1, 3)
    attention_late: bool = False  # its successors start when its predecessor has finished
    # qkv_many, output_many, gate_up_many and down_many: stages of 64 columns of the rows, and of the weights that do not fit as a whole
    stages: int = 6
    down_stages: int = 4
    gate_up_registers: int = 232
    down_registers_32: int | None = 128  # up to 32 rows, in all threads at first: leaves room for the kernels before and after
    down_patience: int = 64  # see ``kernels_down._shares``
    next_weights_rows: int = 129  # from so many rows the MLP's kernels send the weights of the kernel behind them to the L2 cache
    # gate_up_large and head_large
    gate_up_tile: Tile = (64, 32, 4, 3)
    head_tile: Tile = (128, 64, 8, 2)
    head_tile_64: Tile = (64, 64, 4, 3)  # up to 64 rows
    sampler_registers: int = 64  # 129 and more rows: two programs on a multiprocessor


MEASURED_BEST = Tuning()
