"""State of one sequence in the torch engine: counters and integers, no tensors. Written by the scheduler only.

Positions of a sequence (``next_position`` is the first one not yet given to a step)::

    0 ............ next_position ........ num_ids ........ max_ids
    | in the KV cache | to be fed in turn  | reserved      |

A sampled id belongs to the sequence at once, but its position is computed by the following row. After a turn that ended
with LENGTH the last id is not fed yet (``unfed_id``) and goes first in the next turn; after a stop id no id is left
unfed, because the row that sampled the stop id was fed the last yielded id.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bistream.text2token.block_pool import PrefixNode
from bistream.text2token.engine import SamplingSpec, TurnLimits, TurnResult, TurnSink
from bistream.text2token.urgency import Demand

INACTIVE = -1  # instead of a sampled id: the turn had ended on the device before this row
NOT_FINITE = -2  # instead of a sampled id: the row's scores were not finite


class SequenceState(enum.Enum):
    PARKED = "parked"  # holds its KV, waits for text
    FEEDING = "feeding"  # the turn has ids not yet fed
    DECODING = "decoding"  # one row per step, input taken from the device
    ENDED = "ended"  # a turn was cancelled or failed; only ``close`` is allowed
    CLOSED = "closed"


@dataclass(eq=False)
class RunningTurn:
    """The turn in flight. ``num_sampled``: sampling rows given to steps. ``num_new``: ids that came back."""

    limits: TurnLimits
    sink: TurnSink
    feed: tuple[int, ...]
    max_new_ids: int  # the turn's limit or the sequence's remaining room, whichever is smaller
    num_fed: int = 0
    num_sampled: int = 0
    num_new: int = 0


@dataclass(eq=False)
class SequenceRecord:
    """One open session. ``blocks[i]`` holds the positions ``i * block_size`` and following; all are owned from the start."""

    session_id: str
    slot: int  # row of the sampler's and the block tables' device state
    spec: SamplingSpec
    max_ids: int
    blocks: list[int]
    state: SequenceState = SequenceState.PARKED
    num_ids: int = 0
    next_position: int = 0
    unfed_id: int | None = None
    turn: RunningTurn | None = None
    started: bool = False  # the first turn has begun
    texts: list[int] = field(default_factory=list)  # positions of its text ids, ascending, where the settings want them
    demand: Demand | None = None  # as its caller last said
    # registration of the first turn's blocks in the prefix cache, once they are computed
    prompt_ids: tuple[int, ...] = ()  # of that turn; none: there is nothing to register
    num_shared: int = 0  # first blocks, which were there
    prefix_node: PrefixNode | None = None  # of the last one of them

    @property
    def can_decode(self) -> bool:
        """Another row may be scheduled without exceeding the turn's limit."""
        return self.state is SequenceState.DECODING and self.turn is not None and self.turn.num_sampled < self.turn.max_new_ids

    def check(self) -> None:
        """The invariants above. Raises ``AssertionError``."""
        assert (self.turn is not None) == (self.state in (SequenceState.FEEDING, SequenceState.DECODING))
        assert 0 <= self.num_ids <= self.max_ids
        assert 0 <= self.next_position <= self.max_ids
        if self.state is SequenceState.PARKED:
            assert self.next_position == self.num_ids - (self.unfed_id is not None)


class Segment(NamedTuple):
    """Consecutive positions of one sequence in one step. ``ids`` None: one row whose input is the device's last id."""

    slot: int
    position: int
    ids: tuple[int, ...] | None
    samples: bool  # the last row's scores are sampled
    texts: Sequence[int] = ()  # of the sequence, as it is when the step is planned or later

    @property
    def num_rows(self) -> int:
        return 1 if self.ids is None else len(self.ids)


@dataclass(frozen=True)
class SlotReset:
    """A slot gets a new sequence: replaces the state of the previous one."""

    session_id: str
    spec: SamplingSpec
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class TurnStart:
    """A turn begins in a slot. reset: set for the first turn of a sequence."""

    slot: int
    limits: TurnLimits
    max_new_ids: int
    reset: SlotReset | None


@dataclass(frozen=True)
class StepPlan:
    """One step, executed in this order: ``starts``, ``copies`` (source block, target block), rows of ``segments``, sampling.

    Steps are executed in the order in which they were planned, so blocks and slots can be reused at once.
    """

    starts: tuple[TurnStart, ...]
    copies: tuple[tuple[int, int], ...]
    segments: tuple[Segment, ...]
    sampling: tuple[tuple[SequenceRecord, RunningTurn], ...]  # receivers of the ids, in the order of the segments that sample
    is_short: bool = False  # left out sequences that can wait, for those that cannot
    waiting: tuple[tuple[SequenceRecord, RunningTurn], ...] = ()  # those left that begin or are fed, and others with ids to feed
    failed: tuple[TurnUpdate, ...] = ()  # turns that could not be planned

    @property
    def num_rows(self) -> int:
        return sum(segment.num_rows for segment in self.segments)

    def parts(self) -> Iterator[tuple[SequenceRecord, RunningTurn, StepPlan]]:
        """What the step does for each sequence. Turns that have ended before they came to a row are left out."""
        for sequence, turn in (*self.sampling, *self.waiting):
            starts = tuple(start for start in self.starts if start.slot == sequence.slot)
            own = {block for start in starts if start.reset is not None for block in start.reset.blocks}
            copies = tuple(copy for copy in self.copies if copy[1] in own)
            segments = tuple(segment for segment in self.segments if segment.slot == sequence.slot)
            receivers = ((sequence, turn),) if any(segment.samples for segment in segments) else ()
            if starts or segments:
                yield sequence, turn, StepPlan(starts, copies, segments, receivers)


class TurnUpdate(NamedTuple):
    """What one sink is to receive, of a turn of ``sequence``."""

    sequence: SequenceRecord
    sink: TurnSink
    ids: tuple[int, ...] = ()
    result: TurnResult | None = None
    texts_left: int | None = None  # see ``engine.TurnSink``
