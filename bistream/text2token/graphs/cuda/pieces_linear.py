# mypy: ignore-errors
"""Products of the step's rows with weights [features, K], for few and for many rows, and what follows a product.

K is cut into chunks (``chunk_columns``), and the sums over chunks are added in ascending order, whatever the number of rows: so a row's
results are the same, bit for bit, among any number of others.

``few_rows``     16 rows: one warp per chunk, all chunks at once. Operands are loaded into the registers in which the matrix instruction
                 (m16n8k16) takes them, without shared memory. Which of 16 columns is which does not matter to their sum, as long as
                 both operands agree: so lane n * 4 + q loads columns q * 4 .. q * 4 + 4 of row n, which are contiguous.
``many_product`` a tile of rows, pipelined over steps of K.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import add_in_order, squares

CHUNK_COUNT = 8  # the most chunks of K: the warps of a program for few rows
FEW_COUNT = 16  # rows of such a program: those of the matrix instruction
CHUNKS, FEW = tl.constexpr(CHUNK_COUNT), tl.constexpr(FEW_COUNT)


@triton.jit
def prefetch(address):
    """Have a line (128 bytes) brought into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def few_weights(w_ptr, first_feature, first_group, K: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, COUNT: tl.constexpr):
    """Groups of 16 columns first_group .. first_group + COUNT of every chunk: [4, 8, 8 chunks, COUNT, FEATURES / 8, 4].

    The order of the dimensions is that in which Triton deals them out: to lanes, to warps, to registers; the last one is contiguous.
    """
    lane = tl.arange(0, 4)[:, None, None, None, None, None]
    feature = tl.arange(0, 8)[None, :, None, None, None, None]
    chunk = tl.arange(0, CHUNKS)[None, None, :, None, None, None]
    group = first_group + tl.arange(0, COUNT)[None, None, None, :, None, None]
    tile = tl.arange(0, FEATURES // 8)[None, None, None, None, :, None]
    element = tl.arange(0, 4)[None, None, None, None, None, :]
    column = chunk * CHUNK + group * 16
    address = w_ptr + (first_feature + tile * 8 + feature) * K + (column + lane * 4 + element)
    return tl.load(address, mask=(group * 16 < CHUNK) & (column < K), other=0.0)


@triton.jit
def few_rows(x_ptr, base, rows, first_group, K: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr):
    """The left operand [8 chunks, 16 rows, COUNT * 16]: rows base .. base + 16; rows after the last are zero."""
    lane = tl.arange(0, 4)[:, None, None, None, None, None]
    row = tl.arange(0, 8)[None, :, None, None, None, None]
    chunk = tl.arange(0, CHUNKS)[None, None, :, None, None, None]
    group = first_group + tl.arange(0, COUNT)[None, None, None, :, None, None]
    half = tl.arange(0, 2)[None, None, None, None, :, None]
    element = tl.arange(0, 4)[None, None, None, None, None, :]
    column = chunk * CHUNK + group * 16
    number = base + half * 8 + row
    exists = (group * 16 < CHUNK) & (column < K) & (number < rows)
    x = tl.load(x_ptr + number * K + (column + lane * 4 + element), mask=exists, other=0.0)
    x = tl.reshape(x, (4, 8, CHUNKS, COUNT, 2, 2, 2))  # lane, row, chunk, group, half, k8, k1
    return tl.reshape(tl.permute(x, (2, 4, 1, 3, 5, 0, 6)), (CHUNKS, FEW, COUNT * 16))


@triton.jit
def few_right(w, FEATURES: tl.constexpr, COUNT: tl.constexpr):
    """``few_weights`` as the right operand [8 chunks, COUNT * 16, FEATURES]."""
    w = tl.reshape(w, (4, 8, CHUNKS, COUNT, FEATURES // 8, 2, 2))  # lane, feature, chunk, group, tile, k8, k1
    return tl.reshape(tl.permute(w, (2, 3, 5, 0, 6, 4, 1)), (CHUNKS, COUNT * 16, FEATURES))


@triton.jit
def sum_of_chunks(parts, FEATURES: tl.constexpr):
    """[8 chunks, 16, FEATURES] -> [16, FEATURES], added in ascending order."""
    bits = tl.reshape(tl.permute(parts, (1, 2, 0)), (FEW, FEATURES, 2, 2, 2))
    even, odd = tl.split(bits)
    c04, c26 = tl.split(even)
    c15, c37 = tl.split(odd)
    c0, c4 = tl.split(c04)
    c2, c6 = tl.split(c26)
    c1, c5 = tl.split(c15)
    c3, c7 = tl.split(c37)
    total = add_in_order(add_in_order(add_in_order(c0, c1), c2), c3)
    return add_in_order(add_in_order(add_in_order(add_in_order(total, c4), c5), c6), c7)


@triton.jit
def many_product(
    x_ptr, w_ptr, first_row, first_feature,
    K: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[ROWS, FEATURES] of all chunks. STEP divides CHUNK."""
    column = tl.arange(0, STEP)[None, :]
    x_ptr += (first_row + tl.arange(0, ROWS))[:, None] * K + column
    w_ptr += (first_feature + tl.arange(0, FEATURES))[:, None] * K + column
    total = tl.zeros((ROWS, FEATURES), tl.float32)
    part = tl.zeros((ROWS, FEATURES), tl.float32)
    for k in tl.range(0, K, STEP, num_stages=STAGES):
        x = _step_of(x_ptr, k, K, STEP)
        w = _step_of(w_ptr, k, K, STEP)
        if STEP == CHUNK:
            total = add_in_order(total, tl.dot(x, w.T))
        else:
            part = tl.dot(x, w.T, tl.where(k % CHUNK == 0, 0.0, part))
            total = tl.where((k + STEP) % CHUNK == 0, add_in_order(total, part), total)
    if STEP == CHUNK or (K + STEP - 1) // STEP * STEP % CHUNK == 0:  # the last step ended a chunk
        return total
    return add_in_order(total, part)


@triton.jit
def one_chunk(
    x_ptr, w_ptr, first_row, first_feature, first_column, last_column,
    K: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[ROWS, FEATURES] of columns first_column .. last_column."""
    column = tl.arange(0, STEP)[None, :]
    x_ptr += (first_row + tl.arange(0, ROWS))[:, None] * K + column
    w_ptr += (first_feature + tl.arange(0, FEATURES))[:, None] * K + column
    part = tl.zeros((ROWS, FEATURES), tl.float32)
    for k in tl.range(first_column, last_column, STEP, num_stages=STAGES):
        part = tl.dot(_step_of(x_ptr, k, K, STEP), _step_of(w_ptr, k, K, STEP).T, part)
    return part


@triton.jit
def _step_of(ptr, k, K: tl.constexpr, STEP: tl.constexpr):
    """Columns k .. k + STEP, zero from K on."""
    if K % STEP == 0:
        return tl.load(ptr + k)
    return tl.load(ptr + k, mask=k + tl.arange(0, STEP)[None, :] < K, other=0.0)


@triton.jit
def pairs(total, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    """Features alternate in groups of 8 -> the first groups and the second ones, two of [ROWS, FEATURES / 2]."""
    both = tl.permute(tl.reshape(total, (ROWS, FEATURES // 16, 2, 8)), (0, 1, 3, 2))
    first, second = tl.split(both)
    return tl.reshape(first, (ROWS, FEATURES // 2)), tl.reshape(second, (ROWS, FEATURES // 2))


@triton.jit
def fits(x, target_ptr):
    """float32 as the type of a buffer; in float16, at most its largest number."""
    if target_ptr.dtype.element_ty == tl.float16:
        x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(target_ptr.dtype.element_ty)


@triton.jit
def store_residual(x, row, feature, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN: tl.constexpr, SHRINK: tl.constexpr):
    """x [ROWS, FEATURES]: the residual stream, its 16-bit copy times SHRINK, and the sums of squares of the next norm."""
    is_row = row < rows
    at = row[:, None] * HIDDEN + feature[None, :]
    tl.store(x_ptr + at, x, mask=is_row[:, None])
    tl.store(xb_ptr + at, fits(x * SHRINK, xb_ptr), mask=is_row[:, None])
    tl.atomic_add(squares_ptr + row, tl.sum(squares(x), axis=1), mask=is_row, sem="relaxed")
