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
