"""Tile sizes of each kernel. They change speed only. No torch.

Chosen by measurement on one H200 at full size; ``docs/log/gpu.md`` has the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDE_POSITIONS = 30_000  # from this many positions per call, larger tiles of ``convolve`` pay off


@dataclass(frozen=True)
class Tile:
    """How a convolution divides its work: [block outputs, positions] for a program, step channels at a time.

    stages: steps in flight. results: of this size that every multiprocessor must get, or a smaller tile is better. channels: below these a
    smaller tile is better, two of which share a multiprocessor: one multiplies while the other one finishes.
    """

    block: int
    positions: int
    step: int
    stages: int
    warps: int
    results: float = 0.0
    channels: int = 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory: steps in flight in the sum, then a result on its way to memory, in 16 bit."""
        return 2 * max(self.stages * self.step * (self.block + self.positions), self.block * self.positions)


# largest first
TILES = (
    Tile(128, 256, 64, 4, 8, results=0.8, channels=256),
    Tile(128, 256, 64, 3, 8, results=0.8, channels=256),
    Tile(128, 128, 64, 3, 4, results=1.5),
    Tile(64, 256, 32, 4, 4, results=2.0),
    Tile(64, 128, 64, 4, 4, results=1.5),
    Tile(64, 128, 64, 3, 4, results=1.5),
    Tile(64, 64, 64, 4, 4, results=1.0),
    Tile(64, 32, 64, 4, 4),
)
# with two sums in registers
EXACT_TILES = (Tile(128, 128, 64, 3, 8, results=1.0), Tile(64, 64, 64, 4, 4, results=1.0), Tile(64, 32, 64, 4, 4))


def resampling_tile(positions: int, features: int, channels: int, shared: int, is_whole: bool = False) -> Tile:
    """For ``kernels_resampling.convolve``. positions: of all rows of the call. shared: memory of a program, in bytes. is_whole: a program
    needs all features."""
    size = 128 if positions >= WIDE_POSITIONS else 64
    block = features if is_whole else min(size, features)
    return Tile(block, size, math.gcd(channels, 64), 3, 8 if size * block > 8192 else 4)


def convolution_tile(
    positions: int, channels: int, outputs: int, groups: int, is_exact: bool, multiprocessors: int, shared: int
) -> Tile:  # fmt: skip
    """The largest tile that fits the ``shared`` memory of a program and keeps all multiprocessors busy."""
    fitting = [tile for tile in (EXACT_TILES if is_exact else TILES) if tile.shared <= shared]
    fitting = [tile for tile in fitting if outputs % tile.block == 0 == positions % tile.positions and channels >= tile.channels]
    results = positions * outputs * groups
    busy = [tile for tile in fitting if results >= tile.results * tile.block * tile.positions * multiprocessors]
    return busy[0] if busy else fitting[-1]
