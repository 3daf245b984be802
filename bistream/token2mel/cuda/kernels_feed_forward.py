# mypy: ignore-errors
"""The feed-forward of a transformer block of the estimator for few rows, in Gluon. Hopper only.

``odd`` and ``even``: the two buffers of the residual stream, see ``kernels_attention_few``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from bistream.gpu.arithmetic import gelu, layer_norm
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.pieces_few import add_rows, copy_rows


@gluon.jit
def feed_forward_few(
    odd_ptr, gamma_ptr, beta_ptr, w_in_ptr, bias_in_ptr, w_out_ptr, bias_out_ptr, live_ptr, even_ptr,
    WIDTH: gl.constexpr, SIZE: gl.constexpr, DEPTH: gl.constexpr, ROWS: gl.constexpr, EPS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """LayerNorm and the part of DEPTH hidden features, added to ``even``. Grid: SIZE / DEPTH * rows / ROWS.

    w_in: [SIZE, WIDTH]; w_out: [WIDTH, SIZE]. The programs of a row tile divide the addition of x and the bias.
    """
    start_successor()
    part = gl.program_id(0) % (SIZE // DEPTH)
    first = gl.program_id(0) // (SIZE // DEPTH) * ROWS
    live = gl.load(live_ptr)
    if first >= live:
        wait_predecessor()
        return
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [num_warps, 1], [1, 0])
    DTYPE: gl.constexpr = w_in_ptr.dtype.element_ty
    normed = gl.allocate_shared_memory(DTYPE, [ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE))
    w_in = gl.allocate_shared_memory(DTYPE, [DEPTH, WIDTH], gl.NVMMASharedLayout.get_default_for([DEPTH, WIDTH], DTYPE))
    w_out = gl.allocate_shared_memory(DTYPE, [WIDTH, DEPTH], gl.NVMMASharedLayout.get_default_for([WIDTH, DEPTH], DTYPE))
    copy_rows(w_in, w_in_ptr + part * (DEPTH * WIDTH), WIDTH, DEPTH, WIDTH, num_warps)
    copy_rows(w_out, w_out_ptr + part * DEPTH, SIZE, WIDTH, DEPTH, num_warps)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    gamma = gl.load(gamma_ptr + column)
    beta = gl.load(beta_ptr + column)
    bias = gl.load(bias_out_ptr + column).to(gl.float32)
    INNER: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, ROWS, 16])
    feature = gl.arange(0, DEPTH, layout=gl.SliceLayout(1, INNER))
    bias_in = gl.load(bias_in_ptr + part * DEPTH + feature).to(gl.float32)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    mine = gl.expand_dims(row < live, 1) & gl.expand_dims(column // (WIDTH * DEPTH // SIZE) == part, 0)
    wait_predecessor()
    x = gl.load(odd_ptr + at)
    normed.store(layer_norm(x, gamma, beta, WIDTH, EPS).to(DTYPE))
    gl.atomic_add(even_ptr + at, x + gl.expand_dims(bias, 0), mask=mine, sem="relaxed")
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    inner = warpgroup_mma(w_in, normed.permute((1, 0)), gl.zeros([DEPTH, ROWS], gl.float32, layout=INNER), use_acc=False)
    inner = gelu(inner + gl.expand_dims(bias_in, 1)).to(DTYPE)
    hidden = gl.allocate_shared_memory(DTYPE, [ROWS, DEPTH], gl.NVMMASharedLayout.get_default_for([ROWS, DEPTH], DTYPE))
    hidden.permute((1, 0)).store(inner)
    fence_async_shared()
    gl.thread_barrier()
    total = warpgroup_mma(w_out, hidden.permute((1, 0)), gl.zeros([WIDTH, ROWS], gl.float32, layout=INNER), use_acc=False)
    add_rows(even_ptr + first * WIDTH, total.permute((1, 0)), first, live, WIDTH, num_warps)
