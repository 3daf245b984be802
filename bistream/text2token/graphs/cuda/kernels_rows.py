# mypy: ignore-errors
"""First kernel of a step: embeds the rows' ids, and clears the sums of squares of all norms."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import squares
from bistream.text2token.graphs.batch import NUM_FIELDS, RowField
from bistream.text2token.graphs.cuda.pieces_linear import fits

SLOT = tl.constexpr(int(RowField.SLOT))
TOKEN = tl.constexpr(int(RowField.TOKEN))
FIELDS = tl.constexpr(NUM_FIELDS)


@triton.jit
def begin_rows(
    fields_ptr, last_id_ptr, embedding_ptr, x_ptr, xb_ptr, squares_ptr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, NORMS: tl.constexpr, NORMS_WIDTH: tl.constexpr, MAX_ROWS: tl.constexpr,
    SHRINK: tl.constexpr,
):  # fmt: skip
    """Grid: rows. fields_ptr: int32 [rows, FIELDS]; x: float32, xb: 16 bit, times SHRINK; squares_ptr: int64 [NORMS, MAX_ROWS]."""
    row = tl.program_id(0)
    token = tl.load(fields_ptr + row * FIELDS + TOKEN)
    if token < 0:
        token = tl.load(last_id_ptr + tl.load(fields_ptr + row * FIELDS + SLOT)).to(tl.int32)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    x = tl.load(embedding_ptr + token.to(tl.int64) * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ptr + row * HIDDEN + column, x, mask=inside)
    tl.store(xb_ptr + row * HIDDEN + column, fits(x * SHRINK, xb_ptr), mask=inside)
    norm = tl.arange(0, NORMS_WIDTH)
    total = tl.sum(squares(x))
    tl.store(squares_ptr + norm * MAX_ROWS + row, tl.where(norm == 0, total, 0), mask=norm < NORMS)
