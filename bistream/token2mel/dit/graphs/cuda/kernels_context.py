# mypy: ignore-errors
"""Keys and values of stored pages, projected from the block inputs that the pages hold, on any GPU that Triton compiles for.

The pages hold 8-bit integers, and so does this weight, so the sums are exact, and the product takes 0.6 of the time of one in 16 bit.
As many rows are read as the batch has, whatever it was recorded for: the programs share out the work among themselves. Head 0 of the keys,
the only one that knows positions, is turned on the way out.
"""

import triton
import triton.language as tl

from bistream.token2mel.dit.graphs.cuda.pieces_rotation import turned


@triton.jit
def project_pages(
    pages_ptr, pages_stride, scales_ptr, scales_stride, page_ptr, used_ptr, start_ptr,
    weight_ptr, weight_stride, weight_scale_ptr, bias_ptr, bias_stride, table_ptr, table_size, out_ptr, out_stride, stored, blocks,
    FRAMES: tl.constexpr, DIM: tl.constexpr, OUT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Any number of programs. Pointers: as the arguments of ``launches.project_context``; strides: between ``blocks``.

    scales: of the pages' rows; weight_scale: of the weight's, [blocks, OUT]. stored: slots of a guidance half, of which the first ``used``
    count. WIDTH: of head 0 of the keys, the first columns.
    """
    rows = tl.load(used_ptr) * FRAMES
    row_tiles, column_tiles = tl.cdiv(rows, ROWS), tl.cdiv(OUT, COLUMNS)
    of_half = row_tiles * column_tiles
    depth = tl.arange(0, DEPTH)
    for work in range(tl.program_id(0), 2 * blocks * of_half, tl.num_programs(0)):
        block, rest = (work // (2 * of_half)).to(tl.int64), work % (2 * of_half)
        half, rest = rest // of_half, rest % of_half
        row = rest // column_tiles * ROWS + tl.arange(0, ROWS)
        first_column = rest % column_tiles * COLUMNS
        column = first_column + tl.arange(0, COLUMNS)
        is_row, is_column = (row < rows)[:, None], (column < OUT)[:, None]
        slot = half * stored + row // FRAMES
        page = tl.load(page_ptr + slot, mask=row < rows, other=0)
        line = page * FRAMES + row % FRAMES
        inputs = pages_ptr + block * pages_stride + line * DIM
        weights = weight_ptr + block * weight_stride + column * DIM
        sums = tl.zeros((ROWS, COLUMNS), tl.int32)
        for begin in range(0, DIM, DEPTH):
            place = begin + depth[None, :]
            if DIM % DEPTH == 0 and OUT % COLUMNS == 0:
                left = tl.load(inputs[:, None] + place, mask=is_row, other=0)
                right = tl.load(weights[:, None] + place)
            else:
                left = tl.load(inputs[:, None] + place, mask=is_row & (place < DIM), other=0)
                right = tl.load(weights[:, None] + place, mask=is_column & (place < DIM), other=0)
            sums = tl.dot(left, tl.trans(right), sums, out_dtype=tl.int32)
        scale = tl.load(scales_ptr + block * scales_stride + line, mask=row < rows, other=0.0)[:, None]
        scale = scale * tl.load(weight_scale_ptr + block * OUT + column, mask=column < OUT, other=0.0)[None, :]
        bias = tl.load(bias_ptr + block * bias_stride + column, mask=column < OUT, other=0.0)[None, :].to(tl.float32)
        result = sums.to(tl.float32) * scale + bias
        if first_column < WIDTH:
            position = tl.load(start_ptr + slot, mask=row < rows, other=0) + row % FRAMES
            result = turned(result, position, first_column, table_ptr, table_size, WIDTH, ROWS, COLUMNS)
        out = out_ptr + block * out_stride + ((half * stored * FRAMES + row).to(tl.int64) * OUT)[:, None] + column[None, :]
        tl.store(out, result.to(out_ptr.dtype.element_ty), mask=is_row & (column < OUT)[None, :])
