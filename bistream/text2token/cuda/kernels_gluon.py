# mypy: ignore-errors
"""Pieces that the Gluon kernels of the language model step share: ``kernels_common`` again, and programmatic dependent launch.

All kernels of a step follow one another by programmatic dependent launch: a kernel starts while its predecessors run, brings
its weights into registers or shared memory, and only then waits (``wait_predecessor``) for what the predecessor writes.
Nothing is written before the wait.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SQUARE_SCALE = gl.constexpr(16777216.0)  # 2**24, as in kernels_common
BLOCK = gl.constexpr(64)  # positions of a block of the cache, see kernels_attention


@gluon.jit
def wait_predecessor():
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def start_successor():
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def add_in_order(a, b):
    return gl.inline_asm_elementwise("add.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def multiply_add(a, b, c):
    """a * b + c, rounded once; b and c may be narrower than a."""
    _, b = gl.broadcast(a, b)
    _, c = gl.broadcast(a, c)
    return gl.fma(a, b, c)


@gluon.jit
def inverse_rms(sum_of_squares, HIDDEN: gl.constexpr, EPS: gl.constexpr):
    mean = sum_of_squares.to(gl.float32) * (1.0 / (SQUARE_SCALE * HIDDEN))
    return gl.rsqrt(mean + EPS)


@gluon.jit
def squares(x):
    return gl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.rn.f32 t, $1, $1; mul.rn.f32 t, t, 0f4B800000; cvt.rni.s64.f32 $0, t; }",
        "=l,f", [x], dtype=gl.int64, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def finite(x):
    """Zero instead of what is no number: masked positions of a block are multiplied by zero, whatever lies there."""
    return gl.where(gl.abs(x) < 1e30, x, 0.0)


@gluon.jit
def packed_column(k):
    """Where column k of an activation is stored."""
    return (k & ~31) | ((k >> 1) & 3) * 8 | ((k >> 4) & 1) * 4 | ((k >> 3) & 1) * 2 | (k & 1)
