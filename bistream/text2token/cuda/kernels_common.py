# mypy: ignore-errors
"""Pieces that the Triton kernels of the language model step share (``kernels_gluon`` has them again).

Every reduction has one order, whatever the number of rows, so that a row's numbers never depend on its neighbours:

- a product over K is cut into fixed chunks of K (128; 640 in the down projection). A chunk is summed by the tensor core,
  16 at a time, ascending, from zero; the chunks are added in ascending order in float32. Kernels for few rows give each chunk
  to one warp, kernels for many rows walk through the chunks: the same numbers (mma and wgmma agree to the bit on Hopper);
- sums of squares (RMSNorm) are added as integers (``SQUARE_SCALE``), which no order can change;
- a row's attention is cut into splits of 64 positions counted from position 0, combined in ascending order.

Kernels are compiled without fusing multiplications and additions (``enable_fp_fusion``); where they are fused it is written.
"""

import triton
import triton.language as tl

SQUARE_SCALE = tl.constexpr(16777216.0)  # 2**24: squares are summed as int64 multiples of 2**-24


@triton.jit
def add_in_order(a, b):
    """a + b that the compiler cannot pull into a dot (an accumulator started at zero is a different sum)."""
    return tl.inline_asm_elementwise("add.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def inverse_rms(sum_of_squares, HIDDEN: tl.constexpr, EPS: tl.constexpr):
    """int64 sums of squares -> float32 1 / sqrt(mean + eps)."""
    mean = sum_of_squares.to(tl.float32) * (1.0 / (SQUARE_SCALE * HIDDEN))
    return tl.rsqrt(mean + EPS)


@triton.jit
def squares(x):
    """float32 -> int64 multiples of 2**-24."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.rn.f32 t, $1, $1; mul.rn.f32 t, t, 0f4B800000; cvt.rni.s64.f32 $0, t; }",
        "=l,f",
        [x],
        dtype=tl.int64,
        is_pure=True,
        pack=1,
    )


@triton.jit
def packed_column(k):
    """Where ``kernels_small`` wants column k of an activation."""
    return (k & ~31) | ((k >> 1) & 3) * 8 | ((k >> 4) & 1) * 4 | ((k >> 3) & 1) * 2 | (k & 1)
