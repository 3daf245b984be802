"""The host's input to a step: rows of the plan's segments, and the fields of beginning turns. numpy only.

In: ``StepPlan``. Out: the arrays that the step's kernels read. Called by the runner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bistream.text2token.engine import TokenSpace
from bistream.text2token.sampler import seed_key
from bistream.text2token.sequence import Segment, TurnStart

LAST_SAMPLED = -1
NO_POSITION = -1


class RowField(IntEnum):
    """The int32 fields of a row of a step. The only declaration: kernels take the indices of their fields from here."""

    SLOT = 0
    POSITION = 1  # NO_POSITION: a padding row
    TOKEN = 2  # LAST_SAMPLED: the id last sampled in the slot
    SAMPLES = 3  # 1: an id is sampled from the row's scores
    ORDER = 4  # entry i: the row that program i of attention serves


class StartField(IntEnum):
    """The int64 fields of a beginning turn; from TOP_K on, those of a new sequence, see ``sampler.SamplerState``."""

    SLOT = 0
    NUM_BLOCKS = 1  # 0: the sequence is not new
    MAX_NEW = 2
    MIN_NEW = 3
    RECORD_ON_LENGTH = 4  # head row, or -1
    FORBIDDEN = 5  # one bit per special id
    FORBIDDEN_EARLY = 6
    TOP_K = 7
    WIN_SIZE = 8
    MIN_REPEATS = 9
    KEY = 10
    TOP_P = 11  # the bits of a float32, as in TEMPERATURE
    TEMPERATURE = 12


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


NUM_FIELDS = len(RowField)
NUM_START_NUMBERS = _power(len(StartField))  # a kernel loads a power of two of them at once
SMALL_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
BUCKET_STEP = 64  # between larger buckets


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Row counts of the graphs, ascending; a step runs in the smallest sufficient one."""
    beyond = range(SMALL_BUCKETS[-1] + BUCKET_STEP, max_rows, BUCKET_STEP)
    return (*(size for size in (*SMALL_BUCKETS, *beyond) if size < max_rows), max_rows)


def write_rows(target: NDArray[np.int32], segments: Sequence[Segment], filler_slot: int) -> list[int]:
    """Fill target [bucket, NUM_FIELDS]; rows after those of the segments are padding. Returns the rows that sample, in order.

    ``RowField.ORDER`` lists the rows by position, the longest context first: attention starts them in this order.
    """
    slots: list[int] = []
    positions: list[int] = []
    tokens: list[int] = []
    sampling: list[int] = []
    for segment in segments:
        ids = (LAST_SAMPLED,) if segment.ids is None else segment.ids
        slots += [segment.slot] * len(ids)
        positions += range(segment.position, segment.position + len(ids))
        tokens += ids
        if segment.samples:
            sampling.append(len(slots) - 1)
    count = len(slots)
    target[:count, RowField.SLOT], target[count:, RowField.SLOT] = slots, filler_slot
    target[:count, RowField.POSITION], target[count:, RowField.POSITION] = positions, NO_POSITION
    target[:count, RowField.TOKEN], target[count:, RowField.TOKEN] = tokens, 0
    target[:, RowField.SAMPLES] = 0
    target[sampling, RowField.SAMPLES] = 1
    target[:, RowField.ORDER] = np.argsort(-target[:, RowField.POSITION], kind="stable")
    return sampling


def write_starts(numbers: NDArray[np.int64], blocks: NDArray[np.int32], starts: Sequence[TurnStart], space: TokenSpace) -> None:
    """Fill numbers [turns, NUM_START_NUMBERS] and blocks [turns, blocks per sequence] for ``kernels_turns.begin_turns``."""
    for turn, start in enumerate(starts):
        limits, reset = start.limits, start.reset
        row = {
            StartField.SLOT: start.slot,
            StartField.NUM_BLOCKS: 0,
            StartField.MAX_NEW: start.max_new_ids,
            StartField.MIN_NEW: limits.min_new_ids,
            StartField.RECORD_ON_LENGTH: -1 if limits.record_on_length is None else limits.record_on_length - space.speech_offset,
            StartField.FORBIDDEN: _special_bits(limits.forbidden, space),
            StartField.FORBIDDEN_EARLY: _special_bits(limits.forbidden_early, space),
        }
        if reset is not None:
            spec = reset.spec
            row |= {
                StartField.NUM_BLOCKS: len(reset.blocks),
                StartField.TOP_K: spec.top_k,
                StartField.WIN_SIZE: spec.win_size,
                StartField.MIN_REPEATS: math.ceil(spec.win_size * spec.tau_r),
                StartField.KEY: seed_key(spec.seed),
                StartField.TOP_P: _float_bits(spec.top_p),
                StartField.TEMPERATURE: _float_bits(spec.temperature),
            }
            blocks[turn, : len(reset.blocks)] = reset.blocks
        numbers[turn, list(row)] = list(row.values())


def _float_bits(value: float) -> int:
    """The bits of a float32."""
    return int(np.float32(value).view(np.int32))


def _special_bits(ids: frozenset[int], space: TokenSpace) -> int:
    """Bit i for special id i."""
    return sum(1 << number for number, special in enumerate(space.specials) if special in ids)
