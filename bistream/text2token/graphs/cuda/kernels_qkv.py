# mypy: ignore-errors
"""Query/key/value projection: RMSNorm, projection, bias, rotation; keys and values go to the cache."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import finite, inverse_rms, multiply_add
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.batch import NUM_FIELDS, RowField
from bistream.text2token.graphs.cuda.pieces_linear import few_right, few_rows, few_weights, fits, many_product, pairs, sum_of_chunks

FIELDS = tl.constexpr(NUM_FIELDS)
SLOT = tl.constexpr(int(RowField.SLOT))
POSITION = tl.constexpr(int(RowField.POSITION))


@triton.jit(do_not_specialize=["rows", "table_stride"])
def qkv(
    x_ptr, squares_ptr, w_ptr, bias_ptr, cos_ptr, sin_ptr, fields_ptr, table_ptr, table_stride,
    q_ptr, keys_ptr, values_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    EPS: tl.constexpr, SHRINK: tl.constexpr, IS_FEW: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (features / FEATURES, rows / ROWS).

    Weights: in every head groups of 8 features alternate with their rotation partners, half a head later. FEATURES: of one head.
    q_ptr: [rows, HEADS, HEAD]; keys_ptr: [blocks, BLOCK, KV_HEADS, HEAD]; values_ptr: [blocks, KV_HEADS, HEAD, BLOCK], as
    ``kernels_attention`` reads them; cos, sin: float32 [positions, HEAD / 2].
    """
    if PDL:
        start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * ROWS
    if IS_FEW:
        w = few_weights(w_ptr, start, 0, K, CHUNK, FEATURES, CHUNK // 16)
    head = start // HEAD
    half = start % HEAD // 2 + tl.arange(0, FEATURES // 2)
    bias_first = tl.load(bias_ptr + head * HEAD + half)
    bias_second = tl.load(bias_ptr + head * HEAD + half + HEAD // 2)
    row = first_row + tl.arange(0, ROWS)
    position = tl.load(fields_ptr + row * FIELDS + POSITION, mask=row < rows, other=-1)
    live = position >= 0
    at = tl.maximum(position, 0)
    slot = tl.load(fields_ptr + row * FIELDS + SLOT, mask=live, other=0)
    block = tl.load(table_ptr + slot * table_stride + at // BLOCK, mask=live, other=0).to(tl.int64)
    turn = at[:, None] * (HEAD // 2) + half[None, :]
    cos = tl.load(cos_ptr + turn)
    sin = tl.load(sin_ptr + turn)
    if PDL:
        wait_predecessor()
    scale = inverse_rms(tl.load(squares_ptr + row, mask=row < rows, other=0), K, EPS) * (1.0 / SHRINK)
    if IS_FEW:
        x = few_rows(x_ptr, first_row, rows, 0, K, CHUNK, CHUNK // 16)
        total = sum_of_chunks(tl.dot(x, few_right(w, FEATURES, CHUNK // 16)), FEATURES)
    else:
        total = many_product(x_ptr, w_ptr, first_row, start, K, CHUNK, ROWS, FEATURES, STEP, STAGES)
    first, second = pairs(total, ROWS, FEATURES)
    first = multiply_add(first, scale[:, None], bias_first[None, :])
    second = multiply_add(second, scale[:, None], bias_second[None, :])
    if head < HEADS + KV_HEADS:
        turned = tl.fma(first, cos, -(second * sin))
        second = tl.fma(second, cos, first * sin)
        first = turned
    mask = live[:, None]
    if head < HEADS:
        target = q_ptr + (row * HEADS + head)[:, None] * HEAD + half[None, :]
        tl.store(target, fits(first, q_ptr), mask=mask)
        tl.store(target + HEAD // 2, fits(second, q_ptr), mask=mask)
    elif head < HEADS + KV_HEADS:
        target = keys_ptr + ((block * BLOCK + at % BLOCK) * KV_HEADS + head - HEADS)[:, None] * HEAD + half[None, :]
        tl.store(target, fits(first, keys_ptr), mask=mask)  # NaN stays, so that its sequence is found out
        tl.store(target + HEAD // 2, fits(second, keys_ptr), mask=mask)
    else:
        line = (block * KV_HEADS + head - HEADS - KV_HEADS)[:, None] * HEAD + half[None, :]
        target = values_ptr + line * BLOCK + (at % BLOCK)[:, None]
        tl.store(target, fits(finite(first), values_ptr), mask=mask)
        tl.store(target + HEAD // 2 * BLOCK, fits(finite(second), values_ptr), mask=mask)
