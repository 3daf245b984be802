"""The integers of one call as the kernels read them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.mel2wav.hop_plan import RowPlan

META_NUMBERS = 16
FRAME_GAP = 4  # positions without a row before, between and behind rows of one position per frame: what their convolutions reach


@dataclass(frozen=True)
class Rate:
    """Positions of a row: ``rate`` per frame and ``extra`` at its end; ``gap``: zeros around every row."""

    rate: int
    extra: int
    gap: int

    def positions(self, frames: int, rows: int) -> int:
        """From the gap before the first row to the end of the gap behind the last one; ``extra`` positions lie in the gaps."""
        return frames * self.rate + (rows + 1) * self.gap


def pack_rows(plans: Sequence[RowPlan], out: NDArray[np.int32], rates: Sequence[Rate]) -> None:
    """Rows of ``out`` [rows + 1, 16] in the order that the kernels read; rows without a session have no frames.

    The last row: positions in use at each rate.
    """
    out[:] = 0
    new_column = frames = 0
    for row, plan in enumerate(plans):
        low, high = (np.uint32(word).view(np.int32) for word in plan.key)
        out[row] = (
            plan.slot, plan.frames, plan.context, plan.overlap, plan.overlap, plan.first_frame, plan.starts, plan.fades,
            plan.kept_source, new_column, plan.out_frame, plan.emitted, plan.next_first, low, high, frames,
        )  # fmt: skip
        new_column += plan.frames - plan.context
        frames += plan.frames
    out[-1, : len(rates)] = [rate.positions(frames, len(plans)) for rate in rates]
