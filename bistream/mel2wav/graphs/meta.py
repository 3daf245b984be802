"""The integers of one call as the device reads them: one row per session. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bistream.mel2wav.hop_plan import RowPlan

# Columns. NEW: index of the row's first new frame among those of all rows. KEY: two columns.
SLOT, FRAMES, CONTEXT, OVERLAP, FIRST_FRAME, STARTS, FADES, KEPT_SOURCE, NEW, OUT_FRAME, EMITTED, NEXT_FIRST, KEY = range(13)
META_NUMBERS = KEY + 2


def pack_rows(plans: Sequence[RowPlan], out: NDArray[np.int64]) -> None:
    """Fill ``out`` [rows, META_NUMBERS]; padding rows have no frames and the scratch slot."""
    out[:] = 0
    new = 0
    for row, plan in enumerate(plans):
        out[row] = (
            plan.slot, plan.frames, plan.context, plan.overlap, plan.first_frame, plan.starts, plan.fades, plan.kept_source, new,
            plan.out_frame, plan.emitted, plan.next_first, *plan.key,
        )  # fmt: skip
        new += plan.frames - plan.context
