# mypy: ignore-errors
"""Parts of the linear layers for many rows, in Gluon: a producer warp and groups of consumer warps.

A program is a producer warp that issues bulk copies of tiles (``feed``) and one or two groups of four consumer warps that multiply
64 rows each. The groups never wait for one another, so one adds while the other multiplies. Copies of weights to shared memory are
in flight before the wait for the predecessor. Sums have the same order as in ``pieces_few``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from bistream.gpu.arithmetic import add_in_order
from bistream.gpu.dependent_launch import start_successor, wait_predecessor

STEP = gl.constexpr(64)  # columns of K per bulk copy: 128 bytes of every row
GROUP = gl.constexpr(64)  # rows of a group of four warps


@gluon.jit
def _copy_weights(w_desc, more_desc, w_tiles, more_tiles, w_ready, stage, first_feature, column, MORE: gl.constexpr):
    w_bytes: gl.constexpr = w_desc.block_type.nbytes + (more_desc.block_type.nbytes if MORE else 0)
    mbarrier.expect(w_ready.index(stage), w_bytes)
    tma.async_copy_global_to_shared(w_desc, [first_feature, column], w_ready.index(stage), w_tiles.index(stage))
    if MORE:
        first_feature += w_desc.block_type.shape[0]
        tma.async_copy_global_to_shared(more_desc, [first_feature, column], w_ready.index(stage), more_tiles.index(stage))


@gluon.jit
def _copy_rows(x_desc, x_tiles, x_ready, stage, first_row, column, GROUPS: gl.constexpr):
    mbarrier.expect(x_ready.index(stage), x_desc.block_type.nbytes * GROUPS)
    for group in gl.static_range(GROUPS):
        target = x_tiles.index(stage * GROUPS + group)
        tma.async_copy_global_to_shared(x_desc, [first_row + group * GROUP, column], x_ready.index(stage), target)


@gluon.jit
def _send_to_cache(ptr, BYTES: gl.constexpr):
    """Prefetch this program's share of the BYTES at ptr, weights of the next kernel, into the L2 cache. Called by one warp."""
    programs = gl.num_programs(0) * gl.num_programs(1) * gl.num_programs(2)
    number = gl.program_id(0) + gl.num_programs(0) * (gl.program_id(1) + gl.num_programs(1) * gl.program_id(2))
    size = (BYTES + programs * 512 - 1) // (programs * 512) * 16
    start = (number * 32 + gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))) * size
    size = gl.where(start + size <= BYTES, size, 0)
    gl.inline_asm_elementwise(
        "{ .reg .pred some; setp.ne.u32 some, $2, 0; @some cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [ptr.to(gl.int64) + start, size], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def feed(
    x_desc, w_desc, more_desc, x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, first_feature, first_column, next_ptr,
    STEPS: gl.constexpr, X_STAGES: gl.constexpr, W_STAGES: gl.constexpr, GROUPS: gl.constexpr, MORE: gl.constexpr,
    NEXT_BYTES: gl.constexpr, LATE: gl.constexpr,
):  # fmt: skip
    """The producer warp: STEPS tiles of GROUPS * 64 rows and of the weights; weights that do not fit are copied after the wait.

    W_STAGES is STEPS, or X_STAGES: then a stage of weights is free when its stage of rows is. MORE: a second tile of weights, whose
    features follow the first one's. NEXT_BYTES of weights at next_ptr are prefetched into the L2 cache when the memory is less busy.
    LATE: the successor starts after the wait.
    """
    for k in gl.static_range(W_STAGES):
        _copy_weights(w_desc, more_desc, w_tiles, more_tiles, w_ready, k, first_feature, first_column + k * STEP, MORE)
    wait_predecessor()
    if LATE:
        start_successor()
    for k in gl.static_range(X_STAGES):
        _copy_rows(x_desc, x_tiles, x_ready, k, first_row, first_column + k * STEP, GROUPS)
    if (NEXT_BYTES > 0) & (W_STAGES == STEPS):
        _send_to_cache(next_ptr, NEXT_BYTES)
    stage = 0
    phase = 0
    for k in range(X_STAGES, STEPS):
        mbarrier.wait(empty.index(stage), phase)
        _copy_rows(x_desc, x_tiles, x_ready, stage, first_row, first_column + k * STEP, GROUPS)
        if W_STAGES < STEPS:
            _copy_weights(w_desc, more_desc, w_tiles, more_tiles, w_ready, stage, first_feature, first_column + k * STEP, MORE)
        phase = gl.where(stage == X_STAGES - 1, phase ^ 1, phase)
        stage = gl.where(stage == X_STAGES - 1, 0, stage + 1)
    if (NEXT_BYTES > 0) & (W_STAGES < STEPS):
        _send_to_cache(next_ptr, NEXT_BYTES)


@gluon.jit
def _multiply_chunk(x_tiles, w_tiles, x_ready, w_ready, chunk: gl.constexpr, X_STAGES: gl.constexpr):
    """Start the product of 128 columns, accumulated from zero, asynchronously."""
    FEATURES: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FEATURES, 16])
    product = gl.zeros([GROUP, FEATURES], gl.float32, layout)
    for k in gl.static_range(2 * chunk, 2 * chunk + 2):
        mbarrier.wait(w_ready.index(k), 0)
        mbarrier.wait(x_ready.index(k % X_STAGES), (k // X_STAGES) & 1)
        x = x_tiles.index(k % X_STAGES)
        product = warpgroup_mma(x, w_tiles.index(k).permute((1, 0)), product, use_acc=k % 2 == 1, is_async=True)
    return product


@gluon.jit
def sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES: gl.constexpr, K: gl.constexpr):
    """[64 rows, features]: chunks of 128 columns in order; a chunk is multiplied while the previous one is added."""
    FEATURES: gl.constexpr = w_tiles.shape[1]
    CHUNKS: gl.constexpr = K // (2 * STEP)
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FEATURES, 16])
    total = gl.zeros([GROUP, FEATURES], gl.float32, layout)
    product = _multiply_chunk(x_tiles, w_tiles, x_ready, w_ready, 0, X_STAGES)
    for chunk in gl.static_range(CHUNKS):
        part = product
        if chunk + 1 < CHUNKS:
            product = _multiply_chunk(x_tiles, w_tiles, x_ready, w_ready, chunk + 1, X_STAGES)
        part = warpgroup_mma_wait(2 if chunk + 1 < CHUNKS else 0, deps=(part,))
        gl.thread_barrier()
        for k in gl.static_range(2 * chunk, 2 * chunk + 2):
            if k + X_STAGES < 2 * CHUNKS:
                mbarrier.arrive(empty.index(k % X_STAGES), count=1)
        total = add_in_order(total, part)
    return total
