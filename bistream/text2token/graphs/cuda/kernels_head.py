# mypy: ignore-errors
"""Final RMSNorm and the head of speech ids: float32 scores."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import inverse_rms, multiply_add
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.cuda.pieces_linear import few_right, few_rows, few_weights, many_product, sum_of_chunks


@triton.jit(do_not_specialize=["rows"])
def head(
    x_ptr, squares_ptr, w_ptr, bias_ptr, scores_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, STRIDE: tl.constexpr, EPS: tl.constexpr, SHRINK: tl.constexpr,
    IS_FEW: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (STRIDE / FEATURES, rows / ROWS). Weights and bias have STRIDE features, zero after the last id."""
    if PDL:
        start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * ROWS
    row = first_row + tl.arange(0, ROWS)
    feature = start + tl.arange(0, FEATURES)
    if IS_FEW:
        w = few_weights(w_ptr, start, 0, K, CHUNK, FEATURES, CHUNK // 16)
    bias = tl.load(bias_ptr + feature)
    if PDL:
        wait_predecessor()
    scale = inverse_rms(tl.load(squares_ptr + row, mask=row < rows, other=0), K, EPS) * (1.0 / SHRINK)
    if IS_FEW:
        x = few_rows(x_ptr, first_row, rows, 0, K, CHUNK, CHUNK // 16)
        total = sum_of_chunks(tl.dot(x, few_right(w, FEATURES, CHUNK // 16)), FEATURES)
    else:
        total = many_product(x_ptr, w_ptr, first_row, start, K, CHUNK, ROWS, FEATURES, STEP, STAGES)
    scores = multiply_add(total, scale[:, None], bias[None, :])
    tl.store(scores_ptr + row[:, None] * STRIDE + feature[None, :], scores, mask=(row < rows)[:, None])
