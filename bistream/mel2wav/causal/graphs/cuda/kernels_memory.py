# mypy: ignore-errors
"""What a causal layer saw last, before its new inputs, and what it will have seen: copies, on any GPU that Triton compiles for."""

import triton
import triton.language as tl


@triton.jit
def extend_rows(
    old_ptr, x_ptr, out_ptr, kept_ptr, stored_stride, frames_ptr, rate, channels, history_size, size, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (row, block): out = old, then x; kept = out from position rate * frames on, as much as old. All rows channels last.

    stored_stride: numbers between the rows of old and of kept. history_size, size: numbers of a row of old and of x.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    old, x = old_ptr + row * stored_stride, x_ptr + row * size
    is_old = place < history_size
    value = tl.load(tl.where(is_old, old + place, x + place - history_size), mask=place < history_size + size)
    tl.store(out_ptr + row * (history_size + size) + place, value, mask=place < history_size + size)
    if tl.program_id(1) * BLOCK < history_size:
        source = tl.load(frames_ptr + row) * rate * channels + place
        later = tl.load(tl.where(source < history_size, old + source, x + source - history_size), mask=is_old)
        tl.store(kept_ptr + row * stored_stride + place, later, mask=is_old)
