# mypy: ignore-errors
"""The MLP for many rows, in Gluon, built as ``kernels_many``: gate and up (from 65 rows) and down projection (from 17).

All of the down projection's weights of a program are on their way before the wait. Its eight chunks are added, in order, by the
programs that made them, each a share of the rows: see ``_add_chunks``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from bistream.gpu.arithmetic import add_in_order, inverse_rms, packed_column, squares
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.kernels_many import GROUP, STEP, feed

CHUNKS = gl.constexpr(8)
CHUNK_STEPS = gl.constexpr(10)  # a chunk of the down projection: 640 columns
PARTS = gl.constexpr(5)  # of gate and up per program, 16 features each: with 122 programs of 128 rows, 256 rows are one round


@gluon.jit
def _store_gated(total, first_row, start, scale, hidden_ptr, rows, COUNT: gl.constexpr, INTERMEDIATE: gl.constexpr):
    """silu(gate) * up of [64, COUNT * (16 gate, 16 up)]."""
    gate, up = gl.split(total.reshape((GROUP, COUNT, 2, 16)).permute((0, 1, 3, 2)))
    gate = gate.reshape((GROUP, COUNT * 16))
    up = up.reshape((GROUP, COUNT * 16))
    layout: gl.constexpr = gate.type.layout
    row = first_row + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    feature = start + gl.arange(0, COUNT * 16, layout=gl.SliceLayout(0, layout))
    scale = gl.convert_layout(scale, gl.SliceLayout(1, layout), assert_trivial=True)[:, None]
    gate = gate * scale
    gated = gate / (1.0 + gl.exp(-gate)) * (up * scale)
    at = row[:, None] * INTERMEDIATE + feature[None, :]
    gl.store(hidden_ptr + at, gated.to(gl.bfloat16), mask=(row < rows)[:, None] & (feature < INTERMEDIATE)[None, :])


@gluon.jit
def _gate_up_group(
    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
    group: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, K: gl.constexpr, INTERMEDIATE: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """64 rows, 64 + 16 features of gate and of up: tiles of shapes that are powers of two."""
    wide: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    slim: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    total = gl.zeros([GROUP, 128], gl.float32, wide)
    more_total = gl.zeros([GROUP, 32], gl.float32, slim)
    first = first_row + group * GROUP
    wait_predecessor()
    scale = inverse_rms(gl.load(squares_ptr + first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, wide))), K, EPS)
    stage = 0
    phase = 0
    for _ in range(K // (2 * STEP)):  # a chunk of 128 columns
        part = gl.zeros([GROUP, 128], gl.float32, wide)
        more_part = gl.zeros([GROUP, 32], gl.float32, slim)
        for half in gl.static_range(2):
            mbarrier.wait(w_ready.index(stage + half), phase)
            mbarrier.wait(x_ready.index(stage + half), phase)
            x = x_tiles.index((stage + half) * GROUPS + group)
            part = warpgroup_mma(x, w_tiles.index(stage + half).permute((1, 0)), part, use_acc=half == 1, is_async=True)
            more_part = warpgroup_mma(x, more_tiles.index(stage + half).permute((1, 0)), more_part, use_acc=half == 1, is_async=True)
        part, more_part = warpgroup_mma_wait(0, deps=(part, more_part))
        gl.thread_barrier()
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty.index(stage + 1), count=1)
        total = add_in_order(total, part)
        more_total = add_in_order(more_total, more_part)
        phase = gl.where(stage == STAGES - 2, phase ^ 1, phase)
        stage = gl.where(stage == STAGES - 2, 0, stage + 2)
    _store_gated(total, first, start, scale, hidden_ptr, rows, PARTS - 1, INTERMEDIATE)
    _store_gated(more_total, first, start + 16 * (PARTS - 1), scale, hidden_ptr, rows, 1, INTERMEDIATE)


@gluon.jit(do_not_specialize=["rows"])
def gate_up_many(
    x_desc, w_desc, more_desc, squares_ptr, hidden_ptr, next_ptr, rows,
    NEXT_BYTES: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, K: gl.constexpr, INTERMEDIATE: gl.constexpr,
    EPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Rows of the matrix: 16 of gate, 16 of up, and so on; STAGES is even.

    Grid: (cdiv(INTERMEDIATE, 80), rows / 64 / GROUPS).
    """
    start_successor()
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, GROUP, STEP], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, STEP], w_desc.layout)
    more_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 32, STEP], more_desc.layout)
    x_ready = barriers(STAGES, 1)
    w_ready = barriers(STAGES, 1)
    empty = barriers(STAGES, GROUPS)
    start = gl.program_id(0) * (16 * PARTS)
    first_row = gl.program_id(1) * (GROUPS * GROUP)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    0, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    1, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (feed, (
                    x_desc, w_desc, more_desc, x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, 2 * start, 0, next_ptr,
                    K // STEP, STAGES, STAGES, GROUPS, True, NEXT_BYTES, False,
                )),
            ],
            [4, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_gate_up_group, (
                    x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, start, squares_ptr, hidden_ptr, rows,
                    0, GROUPS, STAGES, K, INTERMEDIATE, EPS,
                )),
                (feed, (
                    x_desc, w_desc, more_desc, x_tiles, w_tiles, more_tiles, x_ready, w_ready, empty, first_row, 2 * start, 0, next_ptr,
                    K // STEP, STAGES, STAGES, GROUPS, True, NEXT_BYTES, False,
                )),
            ],
            [1],
            [24],
        )  # fmt: skip


@gluon.jit
def _add_share(
    line, part_ptr, x_ptr, xb_ptr, squares_ptr, start, rows,
    FEATURES: gl.constexpr, MAX_ROWS: gl.constexpr, HIDDEN: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Rows line .. line + 8: the chunks in order, then the residual stream, its bfloat16 copy, and the sums of squares."""
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
    """Which shares (a bit each) of a tile of 64 rows this program adds, once all eight of its chunks are there.

    Every program of the tile takes its own share, which is quickest. Who has waited too long goes and leaves its share to the
    last to come, so that no program ever depends on another that may not have started. One word says it all: in the low
    eight bits how many have come, above them a bit for each that has left.
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

    part_ptr: float32 [8, MAX_ROWS, HIDDEN]; arrived_ptr: int32, one per tile of 64 rows, zero before; PACKED: for ``kernels_small``.
    PATIENCE: looks (about a microsecond each) at the other programs' arrival, see ``_shares``.
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
