"""The integers of one call as the kernels read them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bistream.mel2wav.hop_plan import RowPlan


class MetaField(IntEnum):
    """The int32 numbers of a row, see ``RowPlan``. The only declaration: kernels take their offsets from here."""

    SLOT = 0
    FRAMES = 1
    CONTEXT = 2
    OVERLAP = 4  # 3 is free
    FIRST_FRAME = 5
    STARTS = 6
    FADES = 7
    KEPT_SOURCE = 8
    NEW_COLUMN = 9  # first column of the row's new frames among those of all rows
    OUT_FRAME = 10
    EMITTED = 11
    NEXT_FIRST = 12
    KEY_LOW = 13
    KEY_HIGH = 14
    BEFORE = 15  # frames of all preceding rows


class RateField(IntEnum):
    """The int32 numbers of a rate, see ``Rate``."""

    RATE = 0
    EXTRA = 1
    GAP = 2
    BEGIN = 3  # first position of the rate in ``memory.Workspace.real``


class GroupField(IntEnum):
    """The int32 numbers of a group, a sum of convolutions, for ``kernels_convolution``; rows are rows of the activations."""

    WEIGHTS = 0  # the group's first slice of weights
    TAPS = 1  # of all its convolutions
    EXACT_TAP = 2
    FIRST_TAP = 3  # of each convolution, MOST_PARTS numbers
    IN_ROW = 6  # of each convolution: what tap 0 would read at position 0, were it one of its own
    DILATION = 9  # of each convolution
    RESIDUALS = 12  # how many
    RESIDUAL_ROW = 13  # MOST_RESIDUALS numbers
    OUT_ROW = 16  # -1: the sum itself is not stored
    ACTIVES = 17  # how many
    ACTIVE_ROW = 18  # MOST_ACTIVES numbers


META_NUMBERS = 16
MOST_PARTS = MOST_RESIDUALS = MOST_ACTIVES = 3
GROUP_NUMBERS = GroupField.ACTIVE_ROW + MOST_ACTIVES
FRAME_GAP = 4  # zeros before, between and after rows of one position per frame: covers the reach of their convolutions


@dataclass(frozen=True)
class Rate:
    """Positions of a row: ``rate`` per frame and ``extra`` at its end; ``gap``: zeros around every row."""

    rate: int
    extra: int
    gap: int

    def positions(self, frames: int, rows: int) -> int:
        """From the gap before the first row to the end of the gap after the last one; ``extra`` positions lie in the gaps."""
        return frames * self.rate + (rows + 1) * self.gap


def pack_rows(plans: Sequence[RowPlan], out: NDArray[np.int32], rates: Sequence[Rate]) -> None:
    """Fill ``out`` [rows + 1, META_NUMBERS]; padding rows have no frames.

    The last row: positions in use at each rate.
    """
    out[:] = 0
    new_column = frames = 0
    for row, plan in enumerate(plans):
        low, high = (int(np.uint32(word).view(np.int32)) for word in plan.key)
        numbers = {
            MetaField.SLOT: plan.slot,
            MetaField.FRAMES: plan.frames,
            MetaField.CONTEXT: plan.context,
            MetaField.OVERLAP: plan.overlap,
            MetaField.FIRST_FRAME: plan.first_frame,
            MetaField.STARTS: plan.starts,
            MetaField.FADES: plan.fades,
            MetaField.KEPT_SOURCE: plan.kept_source,
            MetaField.NEW_COLUMN: new_column,
            MetaField.OUT_FRAME: plan.out_frame,
            MetaField.EMITTED: plan.emitted,
            MetaField.NEXT_FIRST: plan.next_first,
            MetaField.KEY_LOW: low,
            MetaField.KEY_HIGH: high,
            MetaField.BEFORE: frames,
        }
        out[row, list(numbers)] = list(numbers.values())
        new_column += plan.frames - plan.context
        frames += plan.frames
    out[-1, : len(rates)] = [rate.positions(frames, len(plans)) for rate in rates]
