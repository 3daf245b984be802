# mypy: ignore-errors
"""Pieces of the kernels for few rows: prefetches to the L2 cache, norms, products of halves, sums over programs."""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import add_in_order


@triton.jit
def prefetch(address):
    """Have the line of every address brought to the L2 cache. (The compiler could move a load after the wait.)"""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def load_halves(ptr, HALF: tl.constexpr):
    """The first and the second half of rows, ``ptr``: of the first. (A warp has rows of 128 numbers as a whole, so that their sums need
    no other warp. What applies to all rows is loaded as [1, columns], in their layout.)"""
    return tl.load(ptr), tl.load(ptr + HALF)


@triton.jit
def moments(first, second, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Mean and inverse standard deviation, [rows, 1], of rows in two halves."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    mean = tl.sum(first + second, axis=1, keep_dims=True) * (1.0 / WIDTH)
    first, second = first - mean, second - mean
    return mean, tl.rsqrt(tl.sum(first * first + second * second, axis=1, keep_dims=True) * (1.0 / WIDTH) + EPS)


@triton.jit
def normed(x, mean, scale, gamma, beta):
    return (x.to(tl.float32) - mean) * scale * gamma.to(tl.float32) + beta.to(tl.float32)


@triton.jit
def dot_halves(a_first, a_second, b_first, b_second):
    """A product whose sum is cut into halves. Few rows have a product of their own for each half: a sum in registers waits for every
    step, and two of them overlap."""
    first = tl.dot(a_first, b_first)
    if a_first.shape[0] < 64:
        return add_in_order(first, tl.dot(a_second, b_second))
    return tl.dot(a_second, b_second, first)


@triton.jit
def add_rows(target, out, first, live, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Atomically add out [ROWS, WIDTH] to float32 rows where ``first`` + row is below ``live``."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    exists = (first + row < live)[:, None] & (column >= 0)[None, :]
    tl.atomic_add(target + row[:, None] * WIDTH + column[None, :], out, mask=exists, sem="relaxed")
