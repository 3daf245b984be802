"""One recorded call of the vocoder as integers: its sessions as rows, and the sizes that calls are recorded for. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bistream.mel2wav.frames import VOCODER_OVERLAP_FRAMES


@dataclass(frozen=True)
class Bucket:
    """Capacity of one recorded call: sessions, and frames per session."""

    rows: int
    frames: int


BUCKETS = tuple(Bucket(rows, frames) for frames in (40, 72, 136, 288) for rows in (2, 16, 64) if rows * frames <= 64 * 72)


def bucket_of(rows: int, frames: int, buckets: Sequence[Bucket] = BUCKETS) -> Bucket | None:
    """The smallest bucket that holds a call, or None."""
    fitting = [bucket for bucket in buckets if bucket.rows >= rows and bucket.frames >= frames]
    return min(fitting, key=lambda bucket: bucket.rows * bucket.frames) if fitting else None


def group_rows(lengths: Sequence[int], buckets: Sequence[Bucket] = BUCKETS) -> list[list[int]]:
    """Indices into ``lengths`` in groups that each fit a bucket, longest first. Every length must fit one."""
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        if groups and bucket_of(len(groups[-1]) + 1, lengths[groups[-1][0]], buckets) is not None:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


@dataclass(frozen=True)
class RowPlan:
    """One session in a call. Frames count from the first frame of the call, except first_frame, which is the session's own.

    slot: of its state. context: frames kept from the previous call; overlap: first frame that is not emitted yet, and the first
    one whose phase continues the kept one; kept_source: frames whose source is kept; emitted: first frame that stays withheld;
    next_first: first frame of the next call; out_frame: where its audio begins in the output.
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

    @property
    def due_frames(self) -> int:
        """Frames whose audio this call emits."""
        return self.emitted - self.overlap


class Progress(Protocol):
    """Progress of a session before a call; frames of the session, as in ``VocoderState``. slot: of its state."""

    slot: int
    key: tuple[int, int]
    first_frame: int
    emitted_frames: int
    received_frames: int


def plan_row(session: Progress, new_frames: int, finalize: bool, context_frames: int, out_frame: int) -> RowPlan:
    """The row of one session, as in the smooth mode of ``VocoderStage``.

    context_frames: frames before the withheld ones that the next call reads again.
    """
    kept = session.received_frames - session.first_frame
    frames = kept + new_frames
    overlap = session.emitted_frames - session.first_frame
    emitted = max(overlap, frames - (0 if finalize else VOCODER_OVERLAP_FRAMES))
    return RowPlan(
        slot=session.slot,
        frames=frames,
        context=kept,
        overlap=overlap,
        first_frame=session.first_frame,
        starts=session.first_frame == 0,
        fades=session.received_frames - session.emitted_frames == VOCODER_OVERLAP_FRAMES and session.emitted_frames > 0,
        kept_source=overlap,
        out_frame=out_frame,
        emitted=emitted,
        next_first=max(0, emitted - context_frames),
        key=session.key,
    )
