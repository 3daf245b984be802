# mypy: ignore-errors
"""Arithmetic that the kernels of several stages share: exact sums, norms, activations, the online softmax.

Triton functions on tensors of any layout. Gluon kernels call them too: a function is compiled in the language of the calling kernel,
as Triton's own library is.
"""

import triton
import triton.language as tl

SQUARE_SCALE = tl.constexpr(16777216.0)  # 2**24: squares are summed as int64 multiples of 2**-24


@triton.jit
def add_in_order(a, b):
    """a + b that the compiler cannot fold into the accumulator of a matrix product (the sum would round differently)."""
    return tl.inline_asm_elementwise("add.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def multiply_add(a, b, c):
    """a * b + c, rounded once; b and c are broadcast to a."""
    _, b = tl.broadcast(a, b)
    _, c = tl.broadcast(a, c)
    return tl.fma(a, b, c)


@triton.jit
def squares(x):
    """Squares of float32 as int64 multiples of 2**-24: their sum does not depend on the order."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.rn.f32 t, $1, $1; mul.rn.f32 t, t, 0f4B800000; cvt.rni.s64.f32 $0, t; }",
        "=l,f",
        [x],
        dtype=tl.int64,
        is_pure=True,
        pack=1,
    )


@triton.jit
def inverse_rms(sum_of_squares, HIDDEN: tl.constexpr, EPS: tl.constexpr):
    """int64 sums of ``squares`` -> float32 1 / sqrt(mean + eps)."""
    mean = sum_of_squares.to(tl.float32) * (1.0 / (SQUARE_SCALE * HIDDEN))
    return tl.rsqrt(mean + EPS)


@triton.jit
def finite(x):
    """Replaces NaN, infinities and huge values by 0: masked positions are multiplied by zero, whatever they hold."""
    return tl.where(tl.abs(x) < 1e30, x, 0.0)


@triton.jit
def layer_norm(x, gamma, beta, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """x: float32 [rows, WIDTH]; gamma, beta: [WIDTH]. Normalised over the row."""
    return normalise(x, WIDTH, EPS) * gamma[None, :].to(tl.float32) + beta[None, :].to(tl.float32)


@triton.jit
def normalise(x, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """float32 [rows, WIDTH] with mean 0 and variance 1 of every row."""
    mean = tl.sum(x, axis=1) * (1.0 / WIDTH)
    centred = x - mean[:, None]
    variance = tl.sum(centred * centred, axis=1) * (1.0 / WIDTH)
    return centred * tl.rsqrt(variance + EPS)[:, None]


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def mish(x):
    """x tanh(log(1 + e^x)) = x (n - 1) / (n + 1) with n = (1 + e^x)^2; x itself for large x."""
    grown = 1.0 + tl.exp(tl.minimum(x, 20.0))
    square = grown * grown
    return x * (square - 1.0) / (square + 1.0)


@triton.jit
def fast_mish(x):
    """x tanh(log(1 + e^x)) = x (e^2 + 2 e) / (e^2 + 2 e + 2) with e = e^x and an approximate division; x itself for large x."""
    grown = tl.exp2(tl.minimum(x, 20.0) * 1.4426950408889634)
    grown = grown * grown + 2.0 * grown
    return x * grown * fast_inverse(grown + 2.0)


@triton.jit
def gelu(x):
    """x times the normal distribution function, approximated by 1/2 plus an odd polynomial (error below 1e-5; constant from 4.5 on)."""
    bounded = tl.minimum(tl.maximum(x, -4.5), 4.5)
    s = bounded * bounded
    series = -1.400312644e-12
    series = series * s + 1.697537472e-10
    series = series * s - 9.194688617e-09
    series = series * s + 2.959105937e-07
    series = series * s - 6.365529477e-06
    series = series * s + 9.787356069e-05
    series = series * s - 1.122689019e-03
    series = series * s + 9.833212900e-03
    series = series * s - 6.633709174e-02
    series = series * s + 3.988838090e-01
    return x * (0.5 + bounded * series)


@triton.jit
def fast_inverse(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def fast_sine(x):
    """Accurate to 5e-7 for arguments of a few turns."""
    return tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def snake(x, alpha):
    """x + sin(alpha x)^2 / alpha."""
    wave = fast_sine(x * alpha)
    return x + wave * wave / (alpha + 1e-9)


@triton.jit
def snake_of_channels(x, alpha):
    """``snake`` with one division per channel. alpha: [channels, 1], x: [channels, any]."""
    wave = fast_sine(x * alpha)
    return x + wave * wave * tl.fdiv(1.0, alpha + 1e-9)


@triton.jit
def soften(scores, highest, total):
    """One step of an online softmax (base 2) over axis 1. Masked scores are large negative numbers, not -infinity.

    Returns the weights of the scores, the factor that rescales earlier sums, the running maximum and the running sum of weights.
    """
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - raised[:, None])
    fade = tl.exp2(highest - raised)
    return weights, fade, raised, total * fade + tl.sum(weights, axis=1)


@triton.jit
def soften_masked(scores, highest, total):
    """``soften`` where masked scores are -infinity, possibly all scores of a row so far."""
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    base = tl.where(raised == float("-inf"), 0.0, raised)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(highest - base)
    return weights, fade, raised, total * fade + tl.sum(weights, axis=1)
