"""One call of the vocoder as integers, and the sizes of recorded calls. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Bucket:
    """Capacity of one recorded call: sessions, and frames of each one."""

    rows: int
    frames: int


BUCKETS = tuple(Bucket(rows, frames) for frames in (40, 72, 136, 288) for rows in (2, 16, 64) if rows * frames <= 64 * 72)


def bucket_of(rows: int, frames: int) -> Bucket | None:
    """The smallest bucket that holds a call; None: there is none."""
    fitting = [bucket for bucket in BUCKETS if bucket.rows >= rows and bucket.frames >= frames]
    return min(fitting, key=lambda bucket: bucket.rows * bucket.frames) if fitting else None


def group_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Positions in groups that each fit a bucket, longest first. Every length must fit one."""
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        if groups and bucket_of(len(groups[-1]) + 1, lengths[groups[-1][0]]) is not None:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


@dataclass(frozen=True)
class RowPlan:
    """One session in a call. Frames count from the first frame of the call, except first_frame, which is the session's own.

    slot: of its state. context: frames that are kept from the call before; anchor: first frame whose phase continues the kept
    one; overlap: first frame that is not out yet; kept_source: frames whose source is kept; emitted: first frame that stays
    withheld; next_first: first frame of the next call; out_frame: where its audio begins in the output.
    """

    slot: int
    frames: int
    context: int
    overlap: int
    first_frame: int
    starts: bool
    fades: bool
    kept_source: int
    out_frame: int
    emitted: int
    next_first: int
    key: tuple[int, int]


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
