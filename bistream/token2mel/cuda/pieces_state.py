# mypy: ignore-errors
"""Rows as ``state_rows`` stores them, 8-bit integers with a scale each. Of both flows."""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import wait_predecessor
from bistream.token2mel.state_rows import LARGEST

WHOLE = tl.constexpr(1.5 * 2.0**23)  # float32 numbers near it are integers: adding and subtracting it rounds, ties to even
HIGHEST = tl.constexpr(LARGEST)


@triton.jit
def whole(numbers):
    """The nearest integers, int8."""
    return ((numbers + WHOLE) - WHOLE).to(tl.int8)


@triton.jit
def scaled_rows(rows):
    """[ROWS, WIDTH] -> int8 of the same shape, and float32 scales [ROWS]. A row that is not finite has a scale that is not."""
    rows = rows.to(tl.float32)
    largest = tl.max(tl.abs(rows), axis=1) + tl.sum(rows * 0.0, axis=1)  # the maximum passes NaN over
    inverse = tl.where(largest > 0.0, HIGHEST / largest, 0.0)
    return whole(rows * inverse[:, None]), largest / HIGHEST


@triton.jit
def _read_rows(values_ptr, scales_ptr, page_ptr, first, end, FRAMES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Rows ``first`` to ``end``, at most ROWS, of the pages page_ptr: their integers, and their scales [ROWS, 1]."""
    row, column = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    exists = row < end
    line = tl.load(page_ptr + row // FRAMES, mask=exists, other=0).to(tl.int64) * FRAMES + row % FRAMES
    numbers = tl.load(values_ptr + line[:, None] * WIDTH + column[None, :], mask=exists[:, None], other=0)
    return numbers, tl.load(scales_ptr + line, mask=exists, other=0.0)[:, None]


@triton.jit
def widen_rows(
    values_ptr, scales_ptr, page_ptr, used_ptr, out_ptr, part, parts,
    FRAMES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Share ``part`` of ``parts`` of the rows of pages as numbers: [used, FRAMES, WIDTH].

    values, scales: ``StateRows`` [pages, FRAMES, WIDTH]. page: int32, the pages, of which the first ``used`` count. ROWS: at a time; the
    next ones are read while these are written. PDL: writing waits for the predecessor, which may read what is overwritten.
    """
    end = tl.load(used_ptr) * FRAMES
    numbers, scale = _read_rows(values_ptr, scales_ptr, page_ptr, part * ROWS, end, FRAMES, WIDTH, ROWS)
    if PDL:
        wait_predecessor()
    for first in range(part * ROWS, end, parts * ROWS):
        wide = (numbers.to(tl.float32) * scale).to(out_ptr.dtype.element_ty)
        numbers, scale = _read_rows(values_ptr, scales_ptr, page_ptr, first + parts * ROWS, end, FRAMES, WIDTH, ROWS)
        row = first + tl.arange(0, ROWS)
        out = out_ptr + row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(out, wide, mask=(row < end)[:, None])
