"""The integers of one call as the device reads them: one row per session. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bistream.mel2wav.causal.hop_plan import CausalPlan

# Columns, as in ``CausalPlan``. SLOT: of the session's state. NEW: index of the row's first new frame among those of all rows.
SLOT, FRAMES, KEPT, NEW, AHEAD, PITCHED, DECODED, FIRST_PITCHED, STARTS, ENDS = range(10)
META_NUMBERS = 10


def pack_rows(plans: Sequence[CausalPlan], slots: Sequence[int], out: NDArray[np.int64]) -> None:
    """Fill ``out`` [rows, META_NUMBERS]; padding rows have no frames and the scratch slot."""
    out[:] = 0
    new = 0
    for row, (plan, slot) in enumerate(zip(plans, slots, strict=True)):
        out[row] = (
            slot, plan.frames, plan.kept, new, plan.ahead, plan.pitched, plan.decoded, plan.first_pitched, plan.starts, plan.ends
        )  # fmt: skip
        new += plan.frames - plan.kept
