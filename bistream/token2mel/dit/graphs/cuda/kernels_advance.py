# mypy: ignore-errors
"""The DiT's residual stream between matrix products: gated sum, modulated LayerNorm, and the norm's place in its page. On any GPU."""

import triton
import triton.language as tl

from bistream.token2mel.cuda.pieces_state import HIGHEST, whole


@triton.jit
def advance_rows(
    x_ptr, delta_ptr, gate_ptr, shift_ptr, scale_ptr, out_ptr, normed_ptr, pages_ptr, scales_ptr, line_ptr, epsilon,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (row): out = x + gate * delta; normed = LayerNorm(out) * (1 + scale) + shift. x, out: float32 [rows, DIM].

    pages_ptr, scales_ptr: ``StateRows`` of width DIM, where normed goes, too, to the row of line_ptr, int64 [rows]; None: it does not.
    BLOCK: 2 ** n, at least DIM.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_column = column < DIM
    place = row * DIM + column
    delta = tl.load(delta_ptr + place, mask=is_column, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + place, mask=is_column, other=0.0) + tl.load(gate_ptr + column, mask=is_column, other=0.0) * delta
    tl.store(out_ptr + place, x, mask=is_column)
    mean = tl.sum(x, axis=0) / DIM
    centred = tl.where(is_column, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=0) / DIM + epsilon)
    scale = 1.0 + tl.load(scale_ptr + column, mask=is_column, other=0.0)
    shift = tl.load(shift_ptr + column, mask=is_column, other=0.0)
    normed = (centred * inverse * scale + shift).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + place, normed, mask=is_column)
    if pages_ptr is not None:
        line = tl.load(line_ptr + row)
        kept = tl.where(is_column, normed.to(tl.float32), 0.0)  # of a row that is not finite no number is: the maximum passes none over
        largest = tl.max(tl.abs(kept), axis=0)
        tl.store(scales_ptr + line, largest / HIGHEST)
        kept = whole(kept * tl.where(largest > 0.0, HIGHEST / largest, 0.0))
        tl.store(pages_ptr + line * DIM + column, kept, mask=is_column)
