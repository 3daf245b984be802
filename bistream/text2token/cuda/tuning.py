"""Which kernels serve which number of rows, and their tiles, as measured on one H200 (``docs/log.md``)."""

from __future__ import annotations

from dataclasses import dataclass

Tile = tuple[int, int, int, int]  # rows, features, warps, stages of the load pipeline


@dataclass(frozen=True)
class Tuning:
    """Choices that change speed only, never a number: every kernel adds in the same order."""

    dependent_launch: bool = True
    shared_memory_first: bool = True  # see ``step.prefer_shared_memory``
    # kernels_small serve up to this many rows, 16 at a time
    qkv_small_rows: int = 128
    output_small_rows: int = 128
    gate_up_small_rows: int = 16
    output_tiles: int = 2  # tiles of 8 features per program, 17 and more rows
    gate_up_pairs: int = 5  # tiles of gate and of up per program
    head_tiles: int = 7
    weights_in_flight: int = 2  # tiles of 14 kB that gate_up and head load at a time
    down_registers: int = 104  # up to 8 rows: leaves room for the kernels before and after
    # attention: stages of 64 kB, blocks that it loads at a time before its turn
    attention: tuple[int, int] = (3, 5)
    attention_many: tuple[int, int] = (1, 3)  # more than 64 rows
    attention_late: bool = False  # its successors start when its predecessor has finished
    # kernels_large
    qkv_tile: Tile = (64, 16, 4, 4)
    output_tile: Tile = (64, 32, 4, 5)
    gate_up_tile: Tile = (128, 64, 8, 3)
    gate_up_tile_64: Tile = (64, 32, 4, 3)  # up to 64 rows
    down_tile: Tile = (128, 128, 8, 3)
    down_tile_64: Tile = (64, 64, 4, 4)
    head_tile: Tile = (128, 64, 8, 2)
    head_tile_64: Tile = (64, 64, 4, 3)


MEASURED_BEST = Tuning()
