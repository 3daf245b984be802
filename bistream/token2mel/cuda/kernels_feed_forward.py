# mypy: ignore-errors
"""The feed-forward of a transformer block of the estimator for few rows.

``odd`` and ``even``: the two buffers of the residual stream, see ``kernels_attention_few``.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import gelu
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.pieces_few import add_rows, dot_halves, load_halves, moments, normed


@triton.jit
def feed_forward_few(
    odd_ptr, gamma_ptr, beta_ptr, w_in_ptr, bias_in_ptr, w_out_ptr, bias_out_ptr, live_ptr, even_ptr,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """LayerNorm and the part of DEPTH hidden features, added to ``even``. Grid: SIZE / DEPTH * rows / ROWS.

    w_in: [SIZE, WIDTH]; w_out: [WIDTH, SIZE]. The programs of a row tile divide the addition of x and the bias.
    """
    if PDL:
        start_successor()
    part = tl.program_id(0) % (SIZE // DEPTH)
    first = tl.program_id(0) // (SIZE // DEPTH) * ROWS
    live = tl.load(live_ptr)
    if first >= live:
        if PDL:
            wait_predecessor()
        return
    HALF: tl.constexpr = WIDTH // 2
    column = tl.arange(0, HALF)[None, :]
    feature = part * DEPTH + tl.arange(0, DEPTH)
    own = part * (WIDTH * DEPTH // SIZE) + tl.arange(0, WIDTH * DEPTH // SIZE)[None, :]
    in_first, in_second = load_halves(w_in_ptr + feature[:, None] * WIDTH + column, HALF)
    w_out = tl.load(w_out_ptr + tl.arange(0, WIDTH)[:, None] * SIZE + feature[None, :])
    gamma, beta = load_halves(gamma_ptr + column, HALF), load_halves(beta_ptr + column, HALF)
    own_bias = tl.load(bias_out_ptr + own).to(tl.float32)
    bias_in = tl.load(bias_in_ptr + feature).to(tl.float32)
    row = first + tl.arange(0, ROWS)[:, None]
    if PDL:
        wait_predecessor()
    x_first, x_second = load_halves(odd_ptr + row * WIDTH + column, HALF)
    own_x = tl.load(odd_ptr + row * WIDTH + own)
    mean, scale = moments(x_first, x_second, WIDTH, EPS)
    n_first = normed(x_first, mean, scale, gamma[0], beta[0]).to(w_out.dtype)
    n_second = normed(x_second, mean, scale, gamma[1], beta[1]).to(w_out.dtype)
    inner = dot_halves(n_first, n_second, in_first.T, in_second.T)
    tl.atomic_add(even_ptr + row * WIDTH + own, own_x + own_bias, mask=row < live, sem="relaxed")
    inner = gelu(inner + bias_in[None, :]).to(w_out.dtype)
    add_rows(even_ptr + first * WIDTH, tl.dot(inner, w_out.T), first, live, ROWS, WIDTH)
