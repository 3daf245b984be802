# mypy: ignore-errors
"""Rows as ``state_rows.scaled`` stores them."""

import triton
import triton.language as tl

WHOLE = tl.constexpr(1.5 * 2.0**23)  # float32 numbers near it are integers: adding and subtracting it rounds, ties to even


@triton.jit
def whole(numbers):
    """The nearest integers, int8."""
    return ((numbers + WHOLE) - WHOLE).to(tl.int8)


@triton.jit
def scaled_rows(rows, LARGEST: tl.constexpr):
    """[ROWS, WIDTH] -> int8 of the same shape, and float32 scales [ROWS]. A row that is not finite has a scale that is not."""
    rows = rows.to(tl.float32)
    largest = tl.max(tl.abs(rows), axis=1) + tl.sum(rows * 0.0, axis=1)  # the maximum passes NaN over
    inverse = tl.where(largest > 0.0, LARGEST / largest, 0.0)
    return whole(rows * inverse[:, None]), largest / LARGEST
