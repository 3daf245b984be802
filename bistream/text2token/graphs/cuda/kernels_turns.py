# mypy: ignore-errors
"""Runs before a step in which turns begin: copies the host's fields of these turns into sampler state and block tables."""

import triton
import triton.language as tl

from bistream.text2token.graphs.batch import NUM_START_NUMBERS, StartField

START_NUMBERS = tl.constexpr(NUM_START_NUMBERS)
SLOT = tl.constexpr(int(StartField.SLOT))
NUM_BLOCKS = tl.constexpr(int(StartField.NUM_BLOCKS))
MAX_NEW = tl.constexpr(int(StartField.MAX_NEW))
MIN_NEW = tl.constexpr(int(StartField.MIN_NEW))
RECORD_ON_LENGTH = tl.constexpr(int(StartField.RECORD_ON_LENGTH))
FORBIDDEN = tl.constexpr(int(StartField.FORBIDDEN))
FORBIDDEN_EARLY = tl.constexpr(int(StartField.FORBIDDEN_EARLY))
TOP_K = tl.constexpr(int(StartField.TOP_K))
WIN_SIZE = tl.constexpr(int(StartField.WIN_SIZE))
MIN_REPEATS = tl.constexpr(int(StartField.MIN_REPEATS))
KEY = tl.constexpr(int(StartField.KEY))
TOP_P = tl.constexpr(int(StartField.TOP_P))
TEMPERATURE = tl.constexpr(int(StartField.TEMPERATURE))


@triton.jit
def _number(numbers, place: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, START_NUMBERS) == place, numbers, 0))


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["starts_ptr", "blocks_ptr"])
def begin_turns(
    starts_ptr, blocks_ptr, table_ptr, table_stride,
    top_p_ptr, top_k_ptr, temperature_ptr, win_size_ptr, min_repeats_ptr, key_ptr, num_decided_ptr, running_ptr, num_new_ptr,
    max_new_ptr, min_new_ptr, forbidden_ptr, forbidden_early_ptr, record_on_length_ptr,
    SPECIALS: tl.constexpr, FILLER: tl.constexpr,
):  # fmt: skip
    """Before a step in which turns begin: ``SamplerState.start_turns`` and the block tables of new sequences. Grid: turns.

    starts_ptr: int64 [turns, START_NUMBERS] (``batch.StartField``), blocks_ptr: int32 [turns, table_stride];
    both in host memory.
    """
    turn = tl.program_id(0)
    numbers = tl.load(starts_ptr + turn * START_NUMBERS + tl.arange(0, START_NUMBERS))
    slot = _number(numbers, SLOT)
    tl.store(running_ptr + slot, (slot != FILLER).to(tl.uint8))
    tl.store(num_new_ptr + slot, 0)
    tl.store(max_new_ptr + slot, _number(numbers, MAX_NEW))
    tl.store(min_new_ptr + slot, _number(numbers, MIN_NEW))
    tl.store(record_on_length_ptr + slot, _number(numbers, RECORD_ON_LENGTH))
    special = tl.arange(0, 64)
    at = slot * SPECIALS + special
    tl.store(forbidden_ptr + at, ((_number(numbers, FORBIDDEN) >> special) & 1).to(tl.uint8), mask=special < SPECIALS)
    tl.store(forbidden_early_ptr + at, ((_number(numbers, FORBIDDEN_EARLY) >> special) & 1).to(tl.uint8), mask=special < SPECIALS)
    num_blocks = _number(numbers, NUM_BLOCKS)
    if num_blocks > 0:
        tl.store(top_k_ptr + slot, _number(numbers, TOP_K))
        tl.store(win_size_ptr + slot, _number(numbers, WIN_SIZE))
        tl.store(min_repeats_ptr + slot, _number(numbers, MIN_REPEATS))
        tl.store(key_ptr + slot, _number(numbers, KEY))
        tl.store(top_p_ptr + slot, _number(numbers, TOP_P).to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(temperature_ptr + slot, _number(numbers, TEMPERATURE).to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(num_decided_ptr + slot, 0)
        for first in range(0, num_blocks, 256):
            block = first + tl.arange(0, 256)
            here = block < num_blocks
            tl.store(table_ptr + slot * table_stride + block, tl.load(blocks_ptr + turn * table_stride + block, mask=here), mask=here)
