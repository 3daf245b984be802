"""First kernel of a step: what the host wrote about each row becomes device state, ids become vectors.

The host writes a step's rows into a ring of pinned memory (``FIELDS`` int32 numbers per row) that the kernel reads over
the bus, so a step needs no copy of its own. ``clock`` says
where in the ring: [0] the next step, [1] the one in progress.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import packed_column, squares

SLOT = tl.constexpr(0)
POSITION = tl.constexpr(1)  # -1: the row only pads the step
START = tl.constexpr(2)  # first position that this step writes in the row's sequence
TOKEN = tl.constexpr(3)  # -1: the last id sampled in the slot
SAMPLES = tl.constexpr(4)  # 1: an id is sampled from the row's scores
ORDER = tl.constexpr(5)  # the row that attention's program of this number serves
FIELDS = tl.constexpr(8)
START_NUMBERS = tl.constexpr(16)


@triton.jit
def _field(fields, number: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, FIELDS) == number, fields, 0))


@triton.jit
def begin_rows(
    ring_ptr, clock_ptr, last_id_ptr, embedding_ptr, rows_ptr, x_ptr, xb_ptr, squares_ptr, arrived_ptr,
    MAX_ROWS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, NORMS: tl.constexpr,
    NORMS_WIDTH: tl.constexpr, ARRIVED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Grid: rows of the bucket. ring_ptr: int32 [depth, MAX_ROWS, FIELDS], in host memory: one read of 32 bytes per row.

    rows_ptr: int32 [FIELDS, MAX_ROWS]; squares_ptr: int64 [NORMS, MAX_ROWS].
    arrived_ptr: int32 [ARRIVED], set to zero for ``kernels_mlp``. PACKED: for ``kernels_small``.
    """
    row = tl.program_id(0)
    step = tl.load(clock_ptr)
    if row == 0:
        tl.store(clock_ptr + 1, step)
        for first in range(0, ARRIVED, 1024):
            at = first + tl.arange(0, 1024)
            tl.store(arrived_ptr + at, 0, mask=at < ARRIVED)
    number = tl.arange(0, FIELDS)
    fields = tl.load(ring_ptr + (step * MAX_ROWS + row) * FIELDS + number)
    tl.store(rows_ptr + number * MAX_ROWS + row, fields)
    token = _field(fields, TOKEN)
    if token < 0:
        token = tl.load(last_id_ptr + _field(fields, SLOT)).to(tl.int32)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    x = tl.load(embedding_ptr + token.to(tl.int64) * HIDDEN + column, mask=inside, other=0.0)
    tl.store(xb_ptr + row * HIDDEN + (packed_column(column) if PACKED else column), x, mask=inside)
    x = x.to(tl.float32)
    tl.store(x_ptr + row * HIDDEN + column, x, mask=inside)
    norm = tl.arange(0, NORMS_WIDTH)
    total = tl.sum(squares(x))
    tl.store(squares_ptr + norm * MAX_ROWS + row, tl.where(norm == 0, total, 0), mask=norm < NORMS)


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

    starts_ptr: int64 [turns, START_NUMBERS], blocks_ptr: int32 [turns, table_stride], both in host memory; see ``host_rows.write_starts``.
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
