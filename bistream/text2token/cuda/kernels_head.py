# mypy: ignore-errors
"""Final RMSNorm and speech head, float32 scores: ``head_small`` for at most 16 rows (``pieces_few``), ``head_large`` for more.

``head_large`` is Triton: tiles loaded through tensor descriptors in pipelined bulk copies.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from bistream.gpu.arithmetic import add_in_order, inverse_rms, multiply_add
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.pieces_few import (
    FLAT,
    FLAT_4D,
    add_chunks,
    eight_products,
    left_operand,
    load_rows,
    stage_weights,
)


@gluon.jit(do_not_specialize=["rows"])
def head_small(
    xb_ptr, squares_ptr, w_ptr, bias_ptr, logits_ptr, rows,
    K: gl.constexpr, VOCAB: gl.constexpr, VOCAB_STRIDE: gl.constexpr, TILES: gl.constexpr, EPS: gl.constexpr, HALVES: gl.constexpr,
    IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """Final RMSNorm and speech head: float32 scores. Grid: cdiv(VOCAB, 8 * TILES), TILES <= 8."""
    start_successor()
    ROWS_OUT: gl.constexpr = 8 * HALVES
    layout: gl.constexpr = gl.BlockedLayout([1, 8, 1, 1], [1, 1, 4, 8], [4, 1, 2, 1], [3, 2, 1, 0])
    out: gl.constexpr = gl.SliceLayout(1, layout)
    first = gl.program_id(0) * TILES
    staged = gl.allocate_shared_memory(gl.bfloat16, [TILES, 4, 8, 256], FLAT)
    stage_weights(staged, w_ptr, first, (VOCAB + 7) // 8 - 1, K, TILES, IN_FLIGHT)
    tile = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, out)))[:, None, None]
    number = gl.arange(0, ROWS_OUT, layout=gl.SliceLayout(0, gl.SliceLayout(2, out)))[None, :, None]
    feature = (first + tile) * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, None, :]
    inside = (tile < TILES) & (feature < VOCAB)
    bias = gl.load(bias_ptr + feature, mask=inside, other=0.0)
    row = gl.minimum(number, rows - 1)
    wait_predecessor()
    x = load_rows(xb_ptr, 0, rows, 0, K, 128, 4, HALVES)
    scale = inverse_rms(gl.load(squares_ptr + row), K, EPS)
    left = left_operand(x, 4, HALVES)
    async_copy.wait_group(0)
    products = eight_products(staged, 0, left, TILES, HALVES)
    gl.thread_barrier()
    exchange = staged._reinterpret(gl.float32, [8, 8, ROWS_OUT, 8], FLAT_4D)
    exchange.store(products.permute((5, 4, 3, 0, 1, 2)).reshape((8, 8, ROWS_OUT, 8)))
    gl.thread_barrier()
    chunks = exchange.load(layout)
    total = add_chunks(chunks.permute((0, 2, 3, 1)).reshape((8, ROWS_OUT, 8, 2, 2, 2)))
    score = multiply_add(gl.convert_layout(total, out, assert_trivial=True), scale, bias)
    gl.store(logits_ptr + row * VOCAB_STRIDE + feature, score, mask=inside & (number < rows))


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
