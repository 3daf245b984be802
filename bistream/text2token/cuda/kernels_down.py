# mypy: ignore-errors
"""Down projection of the MLP, added to the residual stream, in Gluon: ``down_small`` for at most 16 rows, ``down_many`` for more.

Split-K: the sum over 4864 features is cut into eight chunks. With many rows, the copies of all of a program's weights are in flight before
the wait, and the programs of a tile add its chunks, in order, each for a share of the rows: see ``_shares``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from bistream.gpu.arithmetic import add_in_order, packed_column, squares
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.pieces_few import (
    MMA,
    left_operand,
    load_residual,
    load_rows,
    load_weights,
    right_operand,
    store_residual,
    sum_eight,
)
from bistream.text2token.cuda.pieces_many import GROUP, STEP, feed

CHUNKS = gl.constexpr(8)
CHUNK_STEPS = gl.constexpr(10)  # steps of 64 columns in a chunk of 640


@gluon.jit(do_not_specialize=["rows"])
def down_small(hidden_ptr, w_ptr, x_ptr, xb_ptr, squares_ptr, rows, HIDDEN: gl.constexpr, K: gl.constexpr, HALVES: gl.constexpr):
    """Down projection and residual: eight chunks of 640 columns (the last may be shorter). Grid: HIDDEN / 8."""
    start_successor()
    tile = gl.program_id(0)
    w_0 = load_weights(w_ptr, tile, 0, K, 20, 8)
    w_1 = load_weights(w_ptr, tile, 8, K, 20, 8)
    w_2 = load_weights(w_ptr, tile, 16, K, 20, 4)
    wait_predecessor()
    x_0 = load_rows(hidden_ptr, 0, rows, 0, K, 640, 8, HALVES)
    x_1 = load_rows(hidden_ptr, 0, rows, 8, K, 640, 8, HALVES)
    x_2 = load_rows(hidden_ptr, 0, rows, 16, K, 640, 4, HALVES)
    x = load_residual(tile, 0, rows, x_ptr, HIDDEN)
    total = mma_v2(left_operand(x_0, 8, HALVES), right_operand(w_0, 8), gl.zeros([8, 16, 8], gl.float32, MMA))
    total = mma_v2(left_operand(x_1, 8, HALVES), right_operand(w_1, 8), total)
    total = mma_v2(left_operand(x_2, 4, HALVES), right_operand(w_2, 4), total)
    store_residual(x + sum_eight(total), tile, 0, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN, True)


@gluon.jit
def _add_share(
    line, part_ptr, x_ptr, xb_ptr, squares_ptr, start, rows,
    FEATURES: gl.constexpr, MAX_ROWS: gl.constexpr, HIDDEN: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Reduce and store rows line .. line + 8: chunks in order, then residual stream, its bfloat16 copy and sums of squares."""
    share: gl.constexpr = gl.BlockedLayout([1, 4], [128 // FEATURES, FEATURES // 4], [4, 1], [1, 0])
    row = line + gl.arange(0, 8, layout=gl.SliceLayout(1, share))
    is_row = row < rows
    feature = start + gl.arange(0, FEATURES, layout=gl.SliceLayout(0, share))[None, :]
    at = row[:, None] * HIDDEN + feature
    x = gl.load(x_ptr + at, mask=is_row[:, None], other=0.0)
    parts = ()
    for chunk in gl.static_range(CHUNKS):
        part = gl.load(part_ptr + chunk * (MAX_ROWS * HIDDEN) + at, mask=is_row[:, None], other=0.0, cache_modifier=".cg")
        parts = parts + (part,)
    total = parts[0]
    for chunk in gl.static_range(1, CHUNKS):
        total = add_in_order(total, parts[chunk])
    x += total
    gl.store(x_ptr + at, x, mask=is_row[:, None])
    target = xb_ptr + row[:, None] * HIDDEN + (packed_column(feature) if PACKED else feature)
    gl.store(target, x.to(gl.bfloat16), mask=is_row[:, None])
    gl.atomic_add(squares_ptr + row, gl.sum(squares(x), axis=1), mask=is_row, sem="relaxed")


@gluon.jit
def _shares(arrived_ptr, chunk, PATIENCE: gl.constexpr):
    """The shares (one bit each) of a tile of 64 rows that this program reduces, once all eight chunks are stored.

    Normally every program of the tile reduces its own share, which is fastest. A program that times out leaves its share to the
    last one to arrive, so that no program ever depends on one that may not have started. The state is one word: the number
    of arrivals in the low eight bits, above them one bit per program that has left.
    """
    gl.thread_barrier()
    seen = gl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    shares = 1 << chunk
    if seen % 256 == CHUNKS:
        shares |= seen >> 8
    looks = 0
    while (seen % 256 < CHUNKS) & (looks < PATIENCE):
        seen = gl.atomic_add(arrived_ptr, 0, sem="acquire")
        looks += 1
    if seen % 256 < CHUNKS:
        seen = gl.atomic_add(arrived_ptr, 256 << chunk, sem="acq_rel")
        if seen % 256 < CHUNKS:
            shares = 0
    gl.thread_barrier()
    return shares


@gluon.jit
def _down_group(
    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, part_ptr, arrived_ptr, x_ptr, xb_ptr, squares_ptr, rows,
    group: gl.constexpr, GROUPS: gl.constexpr, X_STAGES: gl.constexpr, MAX_ROWS: gl.constexpr, HIDDEN: gl.constexpr, PACKED: gl.constexpr,
    PATIENCE: gl.constexpr,
):  # fmt: skip
    FEATURES: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FEATURES, 16])
    chunk = gl.program_id(2)
    first = first_row + group * GROUP
    total = gl.zeros([GROUP, FEATURES], gl.float32, layout)
    for k in gl.static_range(CHUNK_STEPS):
        stage = k % X_STAGES
        mbarrier.wait(w_ready.index(k), 0)
        mbarrier.wait(x_ready.index(stage), (k // X_STAGES) & 1)
        x = x_tiles.index(stage * GROUPS + group)
        total = warpgroup_mma(x, w_tiles.index(k).permute((1, 0)), total, use_acc=k > 0, is_async=True)
        if (k > 0) & (k - 1 + X_STAGES < CHUNK_STEPS):
            total = warpgroup_mma_wait(1, deps=(total,))
            gl.thread_barrier()
            mbarrier.arrive(empty.index((k - 1) % X_STAGES), count=1)
    total = warpgroup_mma_wait(0, deps=(total,))
    wait_predecessor()
    row = first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    at = (chunk * MAX_ROWS + row)[:, None] * HIDDEN + start + gl.arange(0, FEATURES, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(part_ptr + at, total, mask=(row < rows)[:, None])
    arrived_ptr += (gl.program_id(1) * GROUPS + group) * gl.num_programs(0) + gl.program_id(0)
    shares = _shares(arrived_ptr, chunk, PATIENCE)
    for number in range(0, CHUNKS):
        if (shares >> number) & 1 != 0:
            _add_share(first + number * 8, part_ptr, x_ptr, xb_ptr, squares_ptr, start, rows, FEATURES, MAX_ROWS, HIDDEN, PACKED)


@gluon.jit(do_not_specialize=["rows"])
def down_many(
    x_desc, w_desc, part_ptr, arrived_ptr, x_ptr, xb_ptr, squares_ptr, next_ptr, rows,
    NEXT_BYTES: gl.constexpr, GROUPS: gl.constexpr, X_STAGES: gl.constexpr, MAX_ROWS: gl.constexpr, HIDDEN: gl.constexpr,
    PACKED: gl.constexpr, PATIENCE: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Down projection and residual: eight chunks of 640 columns. Grid: (HIDDEN / FEATURES, rows / 64 / GROUPS, 8).

    part_ptr: float32 [8, MAX_ROWS, HIDDEN]; arrived_ptr: int32, one per tile of 64 rows, initially zero.
    PACKED: store xb for the kernels for few rows. PATIENCE: polls (about a microsecond each) before a program leaves, see ``_shares``.
    """
    start_successor()
    FEATURES: gl.constexpr = w_desc.block_type.shape[0]
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [X_STAGES * GROUPS, GROUP, STEP], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [CHUNK_STEPS, FEATURES, STEP], w_desc.layout)
    x_ready = barriers(X_STAGES, 1)
    w_ready = barriers(CHUNK_STEPS, 1)
    empty = barriers(X_STAGES, GROUPS)
    start = gl.program_id(0) * FEATURES
    first_row = gl.program_id(1) * (GROUPS * GROUP)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_down_group, (
                    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, part_ptr, arrived_ptr, x_ptr, xb_ptr, squares_ptr, rows,
                    0, GROUPS, X_STAGES, MAX_ROWS, HIDDEN, PACKED, PATIENCE,
                )),
                (_down_group, (
                    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, part_ptr, arrived_ptr, x_ptr, xb_ptr, squares_ptr, rows,
                    1, GROUPS, X_STAGES, MAX_ROWS, HIDDEN, PACKED, PATIENCE,
                )),
                (feed, (
                    x_desc, w_desc, w_desc, x_tiles, w_tiles, w_tiles, x_ready, w_ready, empty, first_row, start,
                    gl.program_id(2) * (CHUNK_STEPS * STEP), next_ptr, CHUNK_STEPS, X_STAGES, CHUNK_STEPS, GROUPS, False, NEXT_BYTES, False,
                )),
            ],
            [4, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_down_group, (
                    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, part_ptr, arrived_ptr, x_ptr, xb_ptr, squares_ptr, rows,
                    0, GROUPS, X_STAGES, MAX_ROWS, HIDDEN, PACKED, PATIENCE,
                )),
                (feed, (
                    x_desc, w_desc, w_desc, x_tiles, w_tiles, w_tiles, x_ready, w_ready, empty, first_row, start,
                    gl.program_id(2) * (CHUNK_STEPS * STEP), next_ptr, CHUNK_STEPS, X_STAGES, CHUNK_STEPS, GROUPS, False, NEXT_BYTES, False,
                )),
            ],
            [1],
            [24],
        )  # fmt: skip
