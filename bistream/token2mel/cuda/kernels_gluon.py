# mypy: ignore-errors
"""Pieces that the Gluon kernels share: launch order, LayerNorm and activations, products of few rows."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

TILE = gl.constexpr(64)  # rows of a matrix instruction of a warp group


@gluon.jit
def wait_predecessor():
    """What the kernel before wrote can be read from here on; nothing is written before."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def start_successor():
    """The next kernel may start: it fetches weights and stored chunks while this one works."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def prefetch(ptr, SIZE: gl.constexpr):
    """SIZE 16-bit numbers on their way to the second-level cache. (A load could be moved behind the wait by the compiler.)"""
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


@gluon.jit
def layer_norm(x, gamma, beta, WIDTH: gl.constexpr, EPS: gl.constexpr):
    """x: float32 [rows, WIDTH]; gamma, beta: [WIDTH]."""
    mean = gl.sum(x, axis=1) * (1.0 / WIDTH)
    centred = x - gl.expand_dims(mean, 1)
    scale = gl.rsqrt(gl.sum(centred * centred, axis=1) * (1.0 / WIDTH) + EPS)
    return centred * gl.expand_dims(scale, 1) * gl.expand_dims(gamma.to(gl.float32), 0) + gl.expand_dims(beta.to(gl.float32), 0)


@gluon.jit
def mish(x):
    """x tanh(log(1 + e^x)) = x (e^2 + 2 e) / (e^2 + 2 e + 2) with e = e^x; for large x it is x itself."""
    grown = gl.exp2(gl.minimum(x, 20.0) * 1.4426950408889634)
    grown = grown * grown + 2.0 * grown
    return x * grown * fast_inverse(grown + 2.0)


@gluon.jit
def fast_inverse(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def gelu(x):
    """x times the normal distribution function, as an odd polynomial around 1/2 (error below 1e-5; constant from 4.5 on)."""
    bounded = gl.minimum(gl.maximum(x, -4.5), 4.5)
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


@gluon.constexpr_function
def product_layout(rows, num_warps):
    """Of the products of few rows: a warp has 16 rows, and the warps of the same rows share the features."""
    return gl.NVMMADistributedLayout([2, 0], [rows // 16, num_warps * 16 // rows], [16, 8])


@gluon.jit
def product(a, b, WIDTH: gl.constexpr, FEATURES: gl.constexpr, ROWS: gl.constexpr, PARTS: gl.constexpr, num_warps: gl.constexpr):
    """a [ROWS, WIDTH] b [FEATURES, WIDTH]^T, both in shared memory; in PARTS sums, so that products do not wait for one another."""
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
    """a + b which the compiler does not turn into a product that starts from a."""
    return gl.inline_asm_elementwise("add.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)
