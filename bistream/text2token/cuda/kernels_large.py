"""Gate and up projection (17 to 64 rows) and head (from 17): tiles, pipelined bulk copies, the same sums as ``kernels_small``.

Matrices come as tensor descriptors. Weights are sent to the L2 cache before the wait for the predecessor.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import add_in_order, inverse_rms
from bistream.gpu.dependent_launch import start_successor, wait_predecessor


@triton.jit
def _prefetch(ptr, ROW_BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Send THREADS * ROW_BYTES bytes from ptr to the L2 cache, without waiting."""
    address = ptr.to(tl.int64) + tl.arange(0, THREADS).to(tl.int64) * ROW_BYTES
    tl.inline_asm_elementwise(
        f"cp.async.bulk.prefetch.L2.global [$1], {ROW_BYTES}; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _halves(total, TILE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Columns [PARTS, 2, WIDTH] of total [TILE, .] -> two of [TILE, PARTS * WIDTH]."""
    first, second = tl.split(tl.permute(tl.reshape(total, (TILE, PARTS, 2, WIDTH)), (0, 1, 3, 2)))
    return tl.reshape(first, (TILE, PARTS * WIDTH)), tl.reshape(second, (TILE, PARTS * WIDTH))


@triton.jit(do_not_specialize=["rows"])
def gate_up_large(
    xb_desc, squares_ptr, w_desc, w_ptr, hidden_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, INTERMEDIATE: tl.constexpr,
    EPS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Rows of the matrix: 16 of gate, 16 of up, and so on.

    Grid: (INTERMEDIATE / FEATURES, rows / TILE).
    """
    start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    if tl.program_id(1) == 0:
        _prefetch(w_ptr + 2 * start * K, FEATURES * K * 4 // THREADS, THREADS)
    total = tl.zeros((TILE, 2 * FEATURES), tl.float32)
    wait_predecessor()
    sum_of_squares = tl.load(squares_ptr + row)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(xb_desc.load([first_row, k]), w_desc.load([2 * start, k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    gate, up = _halves(total, TILE, FEATURES // 16, 16)
    gate = gate * scale
    gated = gate / (1.0 + tl.exp(-gate)) * (up * scale)
    at = row[:, None] * INTERMEDIATE + start + tl.arange(0, FEATURES)[None, :]
    tl.store(hidden_ptr + at, gated.to(tl.bfloat16), mask=(row < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def head_large(
    xb_desc, squares_ptr, w_desc, bias_ptr, logits_ptr, rows,
    TILE: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr, K: tl.constexpr, VOCAB: tl.constexpr,
    VOCAB_STRIDE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Final RMSNorm and speech head: float32 scores. Grid: (cdiv(VOCAB, FEATURES), rows / TILE)."""
    start_successor()
    start = tl.program_id(0) * FEATURES
    first_row = tl.program_id(1) * TILE
    row = first_row + tl.arange(0, TILE)
    features = start + tl.arange(0, FEATURES)
    inside = features < VOCAB
    bias = tl.load(bias_ptr + features, mask=inside, other=0.0)
    total = tl.zeros((TILE, FEATURES), tl.float32)
    wait_predecessor()
    sum_of_squares = tl.load(squares_ptr + row)
    for k in tl.range(0, K, 128, num_stages=STAGES):
        total = add_in_order(total, tl.dot(xb_desc.load([first_row, k]), w_desc.load([start, k]).T))
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    score = tl.fma(total, tl.broadcast_to(scale, total.shape), tl.broadcast_to(bias[None, :], total.shape))
    tl.store(logits_ptr + row[:, None] * VOCAB_STRIDE + features[None, :], score, mask=(row < rows)[:, None] & inside[None, :])
