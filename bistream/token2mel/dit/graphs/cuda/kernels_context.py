# mypy: ignore-errors
"""Keys and values of stored pages, projected from the block inputs that the pages hold, on any GPU that Triton compiles for.

As many rows are read as the batch has, whatever it was recorded for: the programs share out the work among themselves. The integers of
the pages are widened first, in a kernel of their own: a matrix product that converts them on its way takes 1.6 times as long. Head 0 of
the keys, the only one that knows positions, is turned on the way out.
"""

import triton
import triton.language as tl

from bistream.token2mel.dit.graphs.cuda.pieces_rotation import turned


@triton.jit
def widen_pages(pages_ptr, pages_stride, page_ptr, used_ptr, out_ptr, out_stride, stored, blocks, SIZE: tl.constexpr, PIECE: tl.constexpr):
    """Any number of programs: the integers of pages that the batch reads, in 16 bit, [blocks, 2 * stored, SIZE]. SIZE: numbers of a page.

    Pointers, strides and ``stored``: as for ``project_pages``. PIECE: numbers at a time.
    """
    used, pieces = tl.load(used_ptr), tl.cdiv(SIZE, PIECE)
    for work in range(tl.program_id(0), 2 * blocks * used * pieces, tl.num_programs(0)):
        block, rest = (work // (2 * used * pieces)).to(tl.int64), work % (2 * used * pieces)
        half, rest = rest // (used * pieces), rest % (used * pieces)
        slot, place = half * stored + rest // pieces, rest % pieces * PIECE + tl.arange(0, PIECE)
        page = tl.load(page_ptr + slot)
        numbers = tl.load(pages_ptr + block * pages_stride + page * SIZE + place, mask=place < SIZE)
        out = out_ptr + block * out_stride + slot.to(tl.int64) * SIZE
        tl.store(out + place, numbers.to(out_ptr.dtype.element_ty), mask=place < SIZE)


@triton.jit
def project_pages(
    wide_ptr, wide_stride, scales_ptr, scales_stride, page_ptr, used_ptr, start_ptr,
    weight_ptr, weight_stride, bias_ptr, bias_stride, table_ptr, table_size, out_ptr, out_stride, stored, blocks,
    FRAMES: tl.constexpr, DIM: tl.constexpr, OUT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Any number of programs. Pointers: as the arguments of ``launches.project_context``; strides: between ``blocks``.

    wide: of ``widen_pages``. scales: of the pages' rows. stored: slots of a guidance half, of which the first ``used`` count. WIDTH: of
    head 0 of the keys, the first columns.
    """
    rows = tl.load(used_ptr) * FRAMES
    row_tiles, column_tiles = tl.cdiv(rows, ROWS), tl.cdiv(OUT, COLUMNS)
    of_half = row_tiles * column_tiles
    depth = tl.arange(0, DEPTH)
    for work in range(tl.program_id(0), 2 * blocks * of_half, tl.num_programs(0)):
        block, rest = work // (2 * of_half), work % (2 * of_half)
        half, rest = rest // of_half, rest % of_half
        row = rest // column_tiles * ROWS + tl.arange(0, ROWS)
        first_column = rest % column_tiles * COLUMNS
        column = first_column + tl.arange(0, COLUMNS)
        is_row, is_column = (row < rows)[:, None], (column < OUT)[:, None]
        slot = half * stored + row // FRAMES
        page = tl.load(page_ptr + slot, mask=row < rows, other=0)
        line = page * FRAMES + row % FRAMES
        wide_row = (half * stored * FRAMES + row).to(tl.int64)
        inputs = wide_ptr + block.to(tl.int64) * wide_stride + wide_row * DIM
        weights = weight_ptr + block.to(tl.int64) * weight_stride + column * DIM
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for begin in range(0, DIM, DEPTH):
            place = begin + depth[None, :]
            if DIM % DEPTH == 0 and OUT % COLUMNS == 0:
                left = tl.load(inputs[:, None] + place, mask=is_row, other=0.0)
                right = tl.load(weights[:, None] + place)
            else:
                left = tl.load(inputs[:, None] + place, mask=is_row & (place < DIM), other=0.0)
                right = tl.load(weights[:, None] + place, mask=is_column & (place < DIM), other=0.0)
            sums = tl.dot(left, tl.trans(right), sums, input_precision="ieee")
        sums *= tl.load(scales_ptr + block.to(tl.int64) * scales_stride + line, mask=row < rows, other=0.0)[:, None]
        sums += tl.load(bias_ptr + block * bias_stride + column, mask=column < OUT, other=0.0)[None, :].to(tl.float32)
        if first_column < WIDTH:
            position = tl.load(start_ptr + slot, mask=row < rows, other=0) + row % FRAMES
            sums = turned(sums, position, first_column, table_ptr, table_size, WIDTH, ROWS, COLUMNS)
        out = out_ptr + block.to(tl.int64) * out_stride + (wide_row * OUT)[:, None] + column[None, :]
        tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=is_row & (column < OUT)[None, :])
