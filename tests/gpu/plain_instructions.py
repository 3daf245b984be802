# mypy: ignore-errors
"""What the kernels write in inline assembly, for Triton's interpreter."""

import triton
import triton.language as tl


@triton.jit
def sine(x):
    return tl.sin(x)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def squares(x):
    return (x * x * 16777216.0 + 0.5).to(tl.int64)


@triton.jit
def inverse(x):
    return 1.0 / x
