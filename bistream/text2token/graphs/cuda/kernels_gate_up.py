# mypy: ignore-errors
"""Gate and up projection of the MLP: RMSNorm, both projections, silu(gate) * up."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import inverse_rms
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.cuda.pieces_linear import (
    few_right,
    few_rows,
    few_weights,
    fits,
    many_product,
    pairs,
    sum_of_chunks,
)


@triton.jit(do_not_specialize=["rows"])
def gate_up(
    x_ptr, squares_ptr, w_ptr, hidden_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, INTERMEDIATE: tl.constexpr, EPS: tl.constexpr, SHRINK: tl.constexpr,
    IS_FEW: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (2 * INTERMEDIATE / FEATURES / TILES, rows / ROWS). Weights: 8 features of gate and 8 of up alternate.

    TILES: of a program, one after the other, all of whose weights are on their way before the wait; 1 unless IS_FEW.
    """
    if PDL:
        start_successor()
    tile = tl.program_id(0) * TILES
    first_row = tl.program_id(1) * ROWS
    row = first_row + tl.arange(0, ROWS)
    last: tl.constexpr = 2 * INTERMEDIATE // FEATURES - 1
    if IS_FEW:
        weights = ()
        for number in tl.static_range(TILES):
            start = tl.minimum(tile + number, last) * FEATURES
            weights = weights + (few_weights(w_ptr, start, 0, K, CHUNK, FEATURES, CHUNK // 16),)
    if PDL:
        wait_predecessor()
    scale = inverse_rms(tl.load(squares_ptr + row, mask=row < rows, other=0), K, EPS) * (1.0 / SHRINK)
    if IS_FEW:
        x = few_rows(x_ptr, first_row, rows, 0, K, CHUNK, CHUNK // 16)
        for number in tl.static_range(TILES):
            total = sum_of_chunks(tl.dot(x, few_right(weights[number], FEATURES, CHUNK // 16)), FEATURES)
            _store(total, scale, row, tl.minimum(tile + number, last) * FEATURES, hidden_ptr, rows, INTERMEDIATE, ROWS, FEATURES)
    else:
        total = many_product(x_ptr, w_ptr, first_row, tile * FEATURES, K, CHUNK, ROWS, FEATURES, STEP, STAGES)
        _store(total, scale, row, tile * FEATURES, hidden_ptr, rows, INTERMEDIATE, ROWS, FEATURES)


@triton.jit
def _store(total, scale, row, start, hidden_ptr, rows, INTERMEDIATE: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    gate, up = pairs(total, ROWS, FEATURES)
    gate = gate * scale[:, None]
    gated = gate / (1.0 + tl.exp(-gate)) * (up * scale[:, None])
    at = row[:, None] * INTERMEDIATE + start // 2 + tl.arange(0, FEATURES // 2)[None, :]
    tl.store(hidden_ptr + at, fits(gated, hidden_ptr), mask=(row < rows)[:, None])
