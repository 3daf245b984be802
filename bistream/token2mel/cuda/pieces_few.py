# mypy: ignore-errors
"""Pieces of the kernels for few rows, in Gluon: copies to shared memory, prefetches to L2, products, sums over programs."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

TILE = gl.constexpr(64)  # rows of a matrix instruction of a warp group


@gluon.jit
def prefetch(ptr, SIZE: gl.constexpr):
    """Prefetch SIZE 16-bit numbers to L2. (The compiler could move a load after the wait.)"""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    line = ptr + gl.arange(0, SIZE // 64, layout=layout) * 64
    gl.inline_asm_elementwise("prefetch.global.L2 [$1]; // $0", "=r,l", [line], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def copy_rows(slot, source, stride, ROWS: gl.constexpr, WIDTH: gl.constexpr, num_warps: gl.constexpr):
    """Start copying ROWS rows, ``stride`` apart, into shared memory."""
    lanes: gl.constexpr = WIDTH // 8 if WIDTH < 256 else 32
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // lanes, lanes], [num_warps, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(slot, source + gl.expand_dims(row * stride, 1) + gl.expand_dims(column, 0))
    async_copy.commit_group()


@gluon.constexpr_function
def product_layout(rows, num_warps):
    """Layout of products of few rows: a warp has 16 rows, and the warps of the same rows share the features."""
    return gl.NVMMADistributedLayout([2, 0], [rows // 16, num_warps * 16 // rows], [16, 8])


@gluon.jit
def product(a, b, WIDTH: gl.constexpr, FEATURES: gl.constexpr, ROWS: gl.constexpr, PARTS: gl.constexpr, num_warps: gl.constexpr):
    """a [ROWS, WIDTH] b [FEATURES, WIDTH]^T, both in shared memory; in PARTS independent sums, so that products overlap."""
    LAYOUT: gl.constexpr = product_layout(ROWS, num_warps)
    SIZE: gl.constexpr = WIDTH // PARTS
    total = gl.zeros([ROWS, FEATURES], gl.float32, layout=LAYOUT)
    for part in gl.static_range(PARTS):
        left = a.slice(part * SIZE, SIZE, dim=1).load(gl.DotOperandLayout(0, LAYOUT, 2))
        right = b.slice(part * SIZE, SIZE, dim=1).permute((1, 0)).load(gl.DotOperandLayout(1, LAYOUT, 2))
        total = add_apart(total, mma_v2(left, right, gl.zeros([ROWS, FEATURES], gl.float32, layout=LAYOUT)))
    return total


@gluon.jit
def add_apart(a, b):
    """a + b that the compiler does not fuse into a product with a as its accumulator."""
    return gl.inline_asm_elementwise("add.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def add_rows(target, out, first, live, WIDTH: gl.constexpr, num_warps: gl.constexpr):
    """Atomically add out [rows, WIDTH] to float32 rows where ``first`` + row is below ``live``, in whole cache lines."""
    LINES: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
    out = gl.convert_layout(out, LINES)
    row = gl.arange(0, out.shape[0], layout=gl.SliceLayout(1, LINES))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LINES))
    exists = gl.expand_dims(first + row < live, 1) & gl.expand_dims(column >= 0, 0)
    gl.atomic_add(target + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0), out, mask=exists, sem="relaxed")
