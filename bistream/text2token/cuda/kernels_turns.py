# mypy: ignore-errors
"""Before a step in which turns begin: what the host wrote about them becomes sampler state and block tables."""

import triton
import triton.language as tl

START_NUMBERS = tl.constexpr(16)


@triton.jit
def _number(numbers, place: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, START_NUMBERS) == place, numbers, 0))


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["starts_ptr", "blocks_ptr"])
def begin_turns(
    starts_ptr, blocks_ptr, table_ptr, table_stride,
    top_p_ptr, top_k_ptr, temperature_ptr, win_size_ptr, min_repeats_ptr, key_ptr, num_decided_ptr, running_ptr, num_new_ptr,
    max_new_ptr, min_new_ptr, forbidden_ptr, forbidden_early_ptr, record_on_length_ptr,
    SPECIALS: tl.constexpr,
):  # fmt: skip
    """Before a step in which turns begin: ``SamplerState.start_turns`` and the block tables of new sequences. Grid: turns.

    starts_ptr: int64 [turns, START_NUMBERS], blocks_ptr: int32 [turns, table_stride], both in host memory; see ``batch.write_starts``.
    """
    turn = tl.program_id(0)
    numbers = tl.load(starts_ptr + turn * START_NUMBERS + tl.arange(0, START_NUMBERS))
    slot = _number(numbers, 0)
    tl.store(running_ptr + slot, 1)
    tl.store(num_new_ptr + slot, 0)
    tl.store(max_new_ptr + slot, _number(numbers, 2))
    tl.store(min_new_ptr + slot, _number(numbers, 3))
    tl.store(record_on_length_ptr + slot, _number(numbers, 4))
    special = tl.arange(0, 4)
    at = slot * SPECIALS + special
    tl.store(forbidden_ptr + at, ((_number(numbers, 5) >> special) & 1).to(tl.uint8), mask=special < SPECIALS)
    tl.store(forbidden_early_ptr + at, ((_number(numbers, 6) >> special) & 1).to(tl.uint8), mask=special < SPECIALS)
    num_blocks = _number(numbers, 1)  # 0: the sequence is not new
    if num_blocks > 0:
        tl.store(top_k_ptr + slot, _number(numbers, 7))
        tl.store(win_size_ptr + slot, _number(numbers, 8))
        tl.store(min_repeats_ptr + slot, _number(numbers, 9))
        tl.store(key_ptr + slot, _number(numbers, 10))
        tl.store(top_p_ptr + slot, _number(numbers, 11).to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(temperature_ptr + slot, _number(numbers, 12).to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(num_decided_ptr + slot, 0)
        for first in range(0, num_blocks, 256):
            block = first + tl.arange(0, 256)
            here = block < num_blocks
            tl.store(table_ptr + slot * table_stride + block, tl.load(blocks_ptr + turn * table_stride + block, mask=here), mask=here)
