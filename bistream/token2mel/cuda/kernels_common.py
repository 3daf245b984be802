# mypy: ignore-errors
"""Pieces that the Triton kernels of the flow share.

Rows are packed: the new frames (or tokens) of all sessions follow one another without padding. ``LIVE`` pointers hold how
many rows there are in this call; a program whose rows lie behind them does nothing, so one recorded launch serves every
smaller batch. Buffers of the estimator hold two guidance halves, ``rows`` apart. Residual streams are float32, everything
that enters a matrix product is 16 bit, sums are float32.

``PDL``: kernels follow one another by programmatic dependent launch; a kernel starts while its predecessor runs, fetches
weights, indices and stored chunks, and waits (``begin``) before it reads what this call computed or writes anything.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the kernel before, then let the next one start: it fetches its weights while this one works."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def layer_norm(x, gamma, beta, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """x: float32 [M, WIDTH]; gamma, beta: [WIDTH]. Normalised over the row."""
    mean = tl.sum(x, axis=1) * (1.0 / WIDTH)
    centred = x - mean[:, None]
    variance = tl.sum(centred * centred, axis=1) * (1.0 / WIDTH)
    scale = tl.rsqrt(variance + EPS)
    return centred * scale[:, None] * gamma[None, :].to(tl.float32) + beta[None, :].to(tl.float32)


@triton.jit
def mish(x):
    """x tanh(log(1 + e^x)) = x (n - 1) / (n + 1) with n = (1 + e^x)^2; for large x it is x itself."""
    grown = 1.0 + tl.exp(tl.minimum(x, 20.0))
    square = grown * grown
    return x * (square - 1.0) / (square + 1.0)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))
