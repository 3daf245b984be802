# mypy: ignore-errors
"""Attention of rows over the paged cache, in Gluon: one warp per split of 64 positions, counted from position 0.

A split is one block of the cache and one softmax: maximum m, sum n of exp2(score - m), weighted values o. Four splits at a time are
merged into the running result (online softmax): M' = max(M, m0..m3), N = N * exp2(M - M') + n0 * exp2(m0 - M') + ..., in ascending
order, O likewise; the result is O / N. The same kernel serves every number of rows, so it is batch-invariant.

A block of one key/value head is 16 contiguous kB, in the order in which the matrix instruction (m16n8k16) takes its right
operand (``memory.py``), so a warp needs no layout conversion. Copies of blocks older than the step are in flight before the
predecessor has finished. The contents of a block after a row's position are finite and have weight zero.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from bistream.gpu.arithmetic import packed_column
from bistream.gpu.dependent_launch import start_successor, wait_predecessor

SPLIT = gl.constexpr(64)
WARPS = gl.constexpr(4)  # affects results: so many splits are merged at a time
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
FLAT_2D = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
KEYS = gl.constexpr(4096)  # key elements in a block of one head; as many value elements follow


@gluon.jit
def _copy_split(staged, warp: gl.constexpr, cache_ptr, block, kv_head, KV_HEADS: gl.constexpr):
    """Start the copy of a block of the cache to the slice of ``warp`` in shared memory [WARPS, 32, 256]."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 1, 32], [1, WARPS, 1], [2, 1, 0])
    line = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    element = gl.arange(0, 256, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    base = cache_ptr + (block.to(gl.int64) * KV_HEADS + kv_head) * (2 * KEYS)
    async_copy.async_copy_global_to_shared(staged.slice(warp, 1, dim=0), base + (line * 256 + element))


@gluon.jit
def _right(staged, KIND: gl.constexpr, MMA: gl.constexpr):
    """Keys (0) or values (1) of a stage as right operands [WARPS, 64, 64]."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 1, 32], [WARPS, 1, 1], [2, 1, 0])
    data = staged.slice(KIND * 16, 16, dim=1).load(layout)
    data = data.reshape((WARPS, 8, 2, 8, 4, 2, 2, 2)).permute((0, 2, 5, 6, 4, 7, 1, 3)).reshape((WARPS, 64, 64))
    return gl.convert_layout(data, gl.DotOperandLayout(1, MMA, 2), assert_trivial=True)


@gluon.jit
def _query(q_ptr, row, kv_head, HEADS: gl.constexpr, SHARE: gl.constexpr, MMA: gl.constexpr):
    """The query heads of a key/value head as left operand [WARPS, 16, 64]: the same for all warps, padded with the last head."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 8], [1, 1, 8, 4], [WARPS, 1, 1, 1], [3, 2, 1, 0])
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout))))[:, None, None, None]
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout))))[None, :, None, None]
    head = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, layout))))[None, None, :, None]
    element = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout))))[None, None, None, :]
    head = kv_head * SHARE + gl.minimum(head, SHARE - 1)
    q = gl.load(q_ptr + (row * HEADS + head) * 64 + half * 32 + element + warp * 0)
    q = q.reshape((WARPS, 2, 8, 4, 2, 2, 2)).permute((0, 2, 1, 4, 5, 3, 6)).reshape((WARPS, 8, 64))
    q = gl.join(q, q).permute((0, 3, 1, 2)).reshape((WARPS, 16, 64))
    return gl.convert_layout(q, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)


@gluon.jit
def _softmax_splits(q, staged, split, last, SCALE: gl.constexpr, MMA: gl.constexpr):
    """m, n [WARPS, 8] and o [WARPS, 8, 64] of the splits split .. split + WARPS, one per warp."""
    scores = mma_v2(q, _right(staged, 0, MMA), gl.zeros([WARPS, 16, 64], gl.float32, MMA))
    scores, _ = gl.split(scores.reshape((WARPS, 2, 8, 64)).permute((0, 2, 3, 1)))  # rows 8 to 15 repeat rows 0 to 7
    layout: gl.constexpr = scores.type.layout
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    scores = gl.where((split + warp) * SPLIT + column <= last, scores * SCALE, -1e30)
    m = gl.max(scores, axis=2)
    weights = gl.exp2(scores - m[:, :, None]).to(gl.bfloat16)
    n = gl.sum(weights.to(gl.float32), axis=2)
    left = gl.join(weights, weights).permute((0, 3, 1, 2)).reshape((WARPS, 16, 64))
    left = gl.convert_layout(left, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)
    o = mma_v2(left, _right(staged, 1, MMA), gl.zeros([WARPS, 16, 64], gl.float32, MMA))
    o, _ = gl.split(o.reshape((WARPS, 2, 8, 64)).permute((0, 2, 3, 1)))
    return m, n, o


@gluon.jit
def _join_splits(total_m, total_n, total_o, exchange_m, exchange_n, exchange_o, number, OUT: gl.constexpr):
    """Merge the first ``number`` of WARPS splits into the running result, in ascending order."""
    one: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 2, 16], [1, WARPS, 1], [2, 1, 0])
    parts = ()
    new_m = total_m
    for warp in gl.static_range(WARPS):
        m = exchange_m.slice(warp, 1, dim=0).load(gl.SliceLayout(2, one)).reshape((8,))
        n = exchange_n.slice(warp, 1, dim=0).load(gl.SliceLayout(2, one)).reshape((8,))
        o = exchange_o.slice(warp, 1, dim=0).load(one).reshape((8, 64))
        m = gl.convert_layout(m, gl.SliceLayout(1, OUT), assert_trivial=True)
        n = gl.convert_layout(n, gl.SliceLayout(1, OUT), assert_trivial=True)
        o = gl.convert_layout(o, OUT, assert_trivial=True)
        m = gl.where(warp < number, m, -1e30)
        new_m = gl.maximum(new_m, m)
        parts = parts + ((m, n, o),)
    before = gl.exp2(total_m - new_m)
    total_n = total_n * before
    total_o = total_o * before[:, None]
    for warp in gl.static_range(WARPS):
        m, n, o = parts[warp]
        after = gl.exp2(m - new_m)
        total_n = gl.where(warp < number, gl.fma(n, after, total_n), total_n)
        wide, _ = gl.broadcast(after[:, None], o)
        total_o = gl.where(warp < number, gl.fma(o, wide, total_o), total_o)
    return new_m, total_n, total_o


@gluon.jit(do_not_specialize=["rows"])
def attend_rows(
    q_ptr, cache_ptr, row_slot, row_position, row_start, row_order, table_ptr, table_stride, attended_ptr, rows,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, SHARE: gl.constexpr, SCALE: gl.constexpr, STAGES: gl.constexpr, IN_FLIGHT: gl.constexpr,
    LATE: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Grid: (KV_HEADS, rows). Shared memory: STAGES * 64 kB.

    IN_FLIGHT: block copies in flight before the wait, besides the newest. LATE: the successor starts after the wait.
    PACKED: store the result for the kernels for few rows. row_order: the row of each program; long contexts start first.
    """
    if not LATE:
        start_successor()
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[WARPS, 1, 1], instr_shape=[1, 16, 8])
    out: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
    kv_head = gl.program_id(0)
    row = gl.load(row_order + gl.program_id(1))
    last = gl.load(row_position + row)
    start = gl.load(row_start + row)
    table = table_ptr + gl.load(row_slot + row) * table_stride
    splits = last // SPLIT + 1
    old = start // SPLIT  # splits that this step does not write
    staged = gl.allocate_shared_memory(gl.bfloat16, [STAGES, WARPS, 32, 256], FLAT)
    blocks = ()
    for number in gl.static_range(STAGES * WARPS):
        blocks = blocks + (gl.load(table + gl.minimum(number, table_stride - 1)),)
    for number in gl.static_range(STAGES * WARPS):
        if number < gl.minimum(old, splits):
            _copy_split(staged.index(number // WARPS), number % WARPS, cache_ptr, blocks[number], kv_head, KV_HEADS)
        async_copy.commit_group()
        async_copy.wait_group(IN_FLIGHT)  # more would delay the loads of the kernels that still run here
    exchange_o = gl.allocate_shared_memory(gl.float32, [WARPS, 8, 64], FLAT)
    exchange_m = gl.allocate_shared_memory(gl.float32, [WARPS, 8], FLAT_2D)
    exchange_n = gl.allocate_shared_memory(gl.float32, [WARPS, 8], FLAT_2D)
    wait_predecessor()
    if LATE:
        start_successor()
    q = _query(q_ptr, row, kv_head, HEADS, SHARE, MMA)
    for number in gl.static_range(STAGES * WARPS):
        if (number >= old) & (number < splits):
            _copy_split(staged.index(number // WARPS), number % WARPS, cache_ptr, blocks[number], kv_head, KV_HEADS)
        if number % WARPS == WARPS - 1:
            async_copy.commit_group()
    total_m = gl.full([8], -1e30, gl.float32, gl.SliceLayout(1, out))
    total_n = gl.zeros([8], gl.float32, gl.SliceLayout(1, out))
    total_o = gl.zeros([8, 64], gl.float32, out)
    stage = 0
    for split in range(0, splits, WARPS):
        async_copy.wait_group(STAGES - 1)
        gl.thread_barrier()
        m, n, o = _softmax_splits(q, staged.index(stage), split, last, SCALE, MMA)
        exchange_o.store(o)
        exchange_m.store(m)
        exchange_n.store(n)
        gl.thread_barrier()
        for warp in gl.static_range(WARPS):
            ahead = split + STAGES * WARPS + warp
            if ahead < splits:
                _copy_split(staged.index(stage), warp, cache_ptr, gl.load(table + ahead), kv_head, KV_HEADS)
        async_copy.commit_group()
        total_m, total_n, total_o = _join_splits(total_m, total_n, total_o, exchange_m, exchange_n, exchange_o, splits - split, out)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    head = gl.arange(0, 8, layout=gl.SliceLayout(1, out))[:, None]
    column = (kv_head * SHARE + head) * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, out))[None, :]
    target = attended_ptr + row * (HEADS * 64) + (packed_column(column) if PACKED else column)
    gl.store(target, (total_o / total_n[:, None]).to(gl.bfloat16), mask=(head < SHARE) & (last >= 0))
