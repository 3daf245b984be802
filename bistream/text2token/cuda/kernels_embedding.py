# mypy: ignore-errors
"""First kernel of a step: copies the host's row fields to device memory and looks up the embeddings.

The host writes a step's rows into a ring of pinned memory (``batch.RowField``) that the kernel reads over
the bus, so a step needs no separate copy. ``clock`` holds ring indices: [0] of the next step, [1] of the one in progress.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import packed_column, squares
from bistream.text2token.cuda.batch import NUM_FIELDS, RowField

SLOT = tl.constexpr(int(RowField.SLOT))
TOKEN = tl.constexpr(int(RowField.TOKEN))
FIELDS = tl.constexpr(NUM_FIELDS)


@triton.jit
def _field(fields, number: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, FIELDS) == number, fields, 0))


@triton.jit
def begin_rows(
    ring_ptr, clock_ptr, last_id_ptr, embedding_ptr, rows_ptr, x_ptr, xb_ptr, squares_ptr, arrived_ptr,
    MAX_ROWS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, NORMS: tl.constexpr,
    NORMS_WIDTH: tl.constexpr, ARRIVED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Grid: rows of the bucket. ring_ptr: int32 [depth, MAX_ROWS, FIELDS], in host memory: one 32-byte read per row.

    rows_ptr: int32 [FIELDS, MAX_ROWS]; squares_ptr: int64 [NORMS, MAX_ROWS].
    arrived_ptr: int32 [ARRIVED], set to zero for ``kernels_down``. PACKED: store xb for the kernels for few rows.
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
