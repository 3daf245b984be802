"""Tile sizes and work per program of each kernel. They change speed only. No torch.

Chosen by measurement on one H200 at full size; ``docs/log/gpu.md`` has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WIDE_POSITIONS = 30_000  # from this many positions per call, larger tiles of ``convolve`` pay off
TILE_POSITIONS = (256, 128, 64)
# for tiles of 256 positions: cost of a product, and bandwidth of a multiprocessor while all of them load
_PRODUCT_CYCLES, _PRODUCT_BYTES, _WINDOW_BYTES, _BYTES_PER_CYCLE = 512, 8192, 36_864, 24
_LIVE = 0.9  # typical share of a call's capacity that is in use


def resampling_tile(positions: int, features: int) -> tuple[int, int]:
    """Positions and outputs of a program of ``kernels_resampling.convolve``. positions: of all rows of the call."""
    return (128, min(128, features)) if positions >= WIDE_POSITIONS else (64, min(64, features))


def tile_positions(results: int, multiprocessors: int) -> int:
    """The largest tile that gives every multiprocessor two results or more. results: positions times blocks of 64 channels."""
    fitting = [size for size in TILE_POSITIONS if results // size >= 2 * multiprocessors]
    return fitting[0] if fitting else TILE_POSITIONS[-1]


def window_share(tiles: int, blocks: int, panels: int, products: Sequence[int], programs: int) -> int:
    """How many successive results use the same windows: few balance the programs, many save traffic. For tiles of 256 positions.

    products: of 64 channels by 64 channels, per result of each group.
    """
    live = round(tiles * _LIVE)
    times: dict[int, float] = {}
    for share in range(1, blocks + 1):
        if blocks % share:
            continue
        units = live * (blocks // share)
        busy = np.zeros(programs)
        for group, count in enumerate(products):
            first = (np.arange(programs) - group * units) % programs
            traffic = (share * count * _PRODUCT_BYTES + panels * _WINDOW_BYTES) / _BYTES_PER_CYCLE
            busy += np.maximum(-(-(units - first) // programs), 0) * max(share * count * _PRODUCT_CYCLES, traffic)
        times[share] = float(busy.max())
    return min(times, key=lambda share: times[share])


def shared_memory(size: int, shared_panels: int) -> dict[str, int]:
    """How the 227 kB of shared memory are divided."""
    if size == 64:
        return {"ROWS": 128, "WINDOWS": 6, "SLOTS": 8, "STAGES": 2}
    if size == 128:
        return {"ROWS": 192, "WINDOWS": 4, "SLOTS": 8, "STAGES": 2}
    if shared_panels > 2:  # all panels stay resident for all results that share them
        return {"ROWS": 320, "WINDOWS": 4, "SLOTS": 4, "STAGES": 1}
    return {"ROWS": 320, "WINDOWS": 3, "SLOTS": 5, "STAGES": 2}
