"""What the host writes for a step: rows of the plan's segments, and the numbers of beginning turns. numpy only.

In: ``StepPlan``. Out: the arrays that ``kernels_embedding`` and ``kernels_turns`` read. Called by the runner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bistream.text2token.engine import TokenSpace
from bistream.text2token.sampler import seed_key
from bistream.text2token.sequence import Segment, TurnStart

NUM_FIELDS = 8  # of a row: slot, position, first position of the segment, id (-1: last sampled), samples, order
ORDER = 5
NUM_START_NUMBERS = 16
LAST_SAMPLED = -1
NO_POSITION = -1
SMALL_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
BUCKET_STEP = 64  # between buckets beyond


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Row counts of the graphs, ascending; a step runs in the smallest that holds it."""
    beyond = range(SMALL_BUCKETS[-1] + BUCKET_STEP, max_rows, BUCKET_STEP)
    return (*(size for size in (*SMALL_BUCKETS, *beyond) if size < max_rows), max_rows)


def write_rows(target: NDArray[np.int32], segments: Sequence[Segment], filler_slot: int) -> list[int]:
    """Fill target [bucket, NUM_FIELDS]; rows behind the segments' are padding. Returns the rows that sample, in order.

    Field ``ORDER`` lists the rows by position, the longest context first: attention takes them in this order.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    sampling: list[int] = []
    for segment in segments:
        slot, start = segment.slot, segment.position
        if segment.ids is None:
            rows.append((slot, start, start, LAST_SAMPLED, int(segment.samples)))
        else:
            rows.extend((slot, start + offset, start, token_id, 0) for offset, token_id in enumerate(segment.ids))
            rows[-1] = (*rows[-1][:4], int(segment.samples))
        if segment.samples:
            sampling.append(len(rows) - 1)
    if rows:
        target[: len(rows), :5] = rows
    target[len(rows) :] = 0
    target[len(rows) :, 0] = filler_slot
    target[len(rows) :, 1] = NO_POSITION
    target[:, ORDER] = np.argsort(-target[:, 1], kind="stable")
    return sampling


def write_starts(numbers: NDArray[np.int64], blocks: NDArray[np.int32], starts: Sequence[TurnStart], space: TokenSpace) -> None:
    """Fill numbers [turns, NUM_START_NUMBERS] and blocks [turns, blocks per sequence] for ``kernels_turns.begin_turns``."""
    for turn, start in enumerate(starts):
        limits, reset = start.limits, start.reset
        recorded = -1 if limits.record_on_length is None else limits.record_on_length - space.speech_offset
        row = [start.slot, 0, start.max_new_ids, limits.min_new_ids, recorded]
        row += [_bits(limits.forbidden, space), _bits(limits.forbidden_early, space)]
        if reset is not None:
            spec = reset.spec
            row[1] = len(reset.blocks)
            row += [spec.top_k, spec.win_size, math.ceil(spec.win_size * spec.tau_r), seed_key(spec.seed)]
            row += np.array([spec.top_p, spec.temperature], dtype=np.float32).view(np.int32).tolist()
            blocks[turn, : len(reset.blocks)] = reset.blocks
        numbers[turn, : len(row)] = row


def _bits(ids: frozenset[int], space: TokenSpace) -> int:
    """Bit i for special id i."""
    return sum(1 << number for number, special in enumerate(space.specials) if special in ids)
