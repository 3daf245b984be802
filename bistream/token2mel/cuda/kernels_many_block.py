# mypy: ignore-errors
"""Everything between two attentions for many rows, in one kernel: values and output, feed-forward, the next block's query.

All of it is pairs of products over slices of 64 features: rows times the slice's weights, something in between, times the
slice's way back to WIDTH. A slice is a head (values and output; query and key projection, where nothing is summed) or 64 of
the hidden features. What lies between the two products stays in registers, and so does the residual stream.

Of a program's warps one fetches (tensor copies into rings in shared memory) and two groups of four multiply 64 rows each, so
that one group's products run while the other computes its activation. Few programs with much work each: they leave room for
the attention of the other guidance half, which runs beside them. Gluon, Hopper only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

GROUP = gl.constexpr(64)  # rows of a group
SLICE = gl.constexpr(64)
WIDTH = gl.constexpr(256)
TILE_BYTES = gl.constexpr(32768)  # [64, 256] or [256, 64] in 16 bit
POOL = gl.constexpr(7)  # tiles in flight of the values
TILES = gl.constexpr(4)  # of a head in that ring: rows of both groups, value weights, output weights
RING = gl.constexpr(4)  # tiles in flight of the feed-forward and the query; behind them lie the groups' rows, then STAGE
STAGE = gl.constexpr(6)  # place of the results of both groups on their way out
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
HALF_SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
MIDDLE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS, 2))
HALF_LEFT = gl.constexpr(gl.DotOperandLayout(0, HALF_SUMS, 2))
LINES = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))


@gluon.jit
def _gelu(x):
    """As ``kernels_common.gelu``."""
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


@gluon.jit
def _fetch(desc, y, x, pool, full, empty, item, SIZE: gl.constexpr, TURNED: gl.constexpr):
    """Copy the tile at (y, x) to its place in the ring once that is free. TURNED: [256, 64], else [64, 256]."""
    slot = item % SIZE
    mbarrier.wait(empty.index(slot), (item // SIZE & 1) ^ 1)
    mbarrier.expect(full.index(slot), TILE_BYTES)
    target = pool.index(slot)
    if TURNED:
        target = target._reinterpret(target.dtype, [WIDTH, SLICE], target.layout)
    tma.async_copy_global_to_shared(desc, [y, x], full.index(slot), target)


@gluon.jit
def _await_drained(empty, slot, ITEMS: gl.constexpr, SIZE: gl.constexpr):
    """Wait until all that was fetched to a place of a ring of ITEMS items has been used."""
    mbarrier.wait(empty.index(slot), ((ITEMS - 1 - slot) // SIZE) & 1)


@gluon.jit
def _producer(
    descriptors, pool, barriers, first_row, first_head,
    HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr,
):  # fmt: skip
    """Everything in the order in which the groups use it."""
    rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc = descriptors
    full, empty, ring_full, ring_empty, rows_full, _ = barriers
    if SUM:
        for head in range(HEADS):
            item = head * TILES
            _fetch(rows_desc, first_row, head * WIDTH, pool, full, empty, item, POOL, False)
            _fetch(rows_desc, first_row + GROUP, head * WIDTH, pool, full, empty, item + 1, POOL, False)
            _fetch(value_desc, head * SLICE, 0, pool, full, empty, item + 2, POOL, False)
            _fetch(output_desc, 0, head * SLICE, pool, full, empty, item + 3, POOL, True)
        for slot in gl.static_range(RING):
            _await_drained(empty, slot, HEADS * TILES, POOL)
        for index in range(HIDDEN):
            _fetch(in_desc, index * SLICE, 0, pool, ring_full, ring_empty, 2 * index, RING, False)
            _fetch(back_desc, 0, index * SLICE, pool, ring_full, ring_empty, 2 * index + 1, RING, True)
    else:
        for group in gl.static_range(2):
            mbarrier.expect(rows_full.index(group), TILE_BYTES)
            tma.async_copy_global_to_shared(rows_desc, [first_row + group * GROUP, 0], rows_full.index(group), pool.index(RING + group))
    if QUERY:
        for head in range(HEADS):
            item = 2 * head + (2 * HIDDEN if SUM else 0)
            row = (first_head + head) * SLICE
            _fetch(query_desc, row, 0, pool, ring_full, ring_empty, item, RING, False)
            _fetch(key_desc, row, 0, pool, ring_full, ring_empty, item + 1, RING, False)


@gluon.jit
def _wait_full(full, item, SIZE: gl.constexpr):
    """Wait for an item of a ring; returns its place."""
    slot = item % SIZE
    mbarrier.wait(full.index(slot), item // SIZE & 1)
    return slot


@gluon.jit
def _back_weights(pool, slot):
    tile = pool.index(slot)
    return tile._reinterpret(tile.dtype, [WIDTH, SLICE], tile.layout).permute((1, 0))


@gluon.jit
def _sum_slices(
    sums, rows_kept, bias_ptr, pool, full, empty, turn,
    COUNT: gl.constexpr, INDEX: gl.constexpr, SIZE: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    """sums + all slices. STEP: tiles of a slice in the ring; 2: rows lie in ``rows_kept``, GELU between the products.

    With GELU the groups take turns at the tensor cores: both would multiply and then both compute their GELU otherwise.
    """
    DTYPE: gl.constexpr = pool.dtype
    KEPT: gl.constexpr = STEP == 2
    feature = gl.arange(0, SLICE, layout=gl.SliceLayout(0, MIDDLE))
    nothing = gl.zeros([GROUP, SLICE], gl.float32, layout=MIDDLE)
    bias = gl.load(bias_ptr + feature).to(gl.float32)
    a = rows_kept
    if not KEPT:
        a = pool.index(_wait_full(full, INDEX, SIZE))
    slot = _wait_full(full, STEP - 2, SIZE)
    middle = warpgroup_mma(a, pool.index(slot).permute((1, 0)), nothing, use_acc=False)
    for number in range(STEP - 1):
        mbarrier.arrive(empty.index(number))
    for index in range(1, COUNT):
        if KEPT:
            middle = _gelu(middle + gl.expand_dims(bias, 0))
        packed = gl.convert_layout(middle.to(DTYPE), LEFT)
        item = index * STEP
        freed = _wait_full(full, item - 1, SIZE)
        if KEPT:
            mbarrier.wait(turn.index(INDEX), (index - INDEX) & 1)
        summing = warpgroup_mma(packed, _back_weights(pool, freed), sums, is_async=True)
        a = rows_kept
        if not KEPT:
            a = pool.index(_wait_full(full, item + INDEX, SIZE))
        slot = _wait_full(full, item + STEP - 2, SIZE)
        coming = warpgroup_mma(a, pool.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        if KEPT:
            bias = gl.load(bias_ptr + index * SLICE + feature).to(gl.float32)
        sums = warpgroup_mma_wait(1, deps=(summing,))
        mbarrier.arrive(empty.index(freed))
        middle = warpgroup_mma_wait(0, deps=(coming,))
        if KEPT:
            mbarrier.arrive(turn.index(1 - INDEX))
        for number in range(STEP - 1):
            mbarrier.arrive(empty.index((item + number) % SIZE))
    if KEPT:
        middle = _gelu(middle + gl.expand_dims(bias, 0))
    packed = gl.convert_layout(middle.to(DTYPE), LEFT)
    slot = _wait_full(full, COUNT * STEP - 1, SIZE)
    sums = warpgroup_mma(packed, _back_weights(pool, slot), sums)
    mbarrier.arrive(empty.index(slot))
    return sums


@gluon.jit
def _norm(sums, gamma_ptr, beta_ptr, EPS: gl.constexpr):
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, SUMS))
    mean = gl.sum(sums, axis=1) * (1.0 / WIDTH)
    centred = sums - gl.expand_dims(mean, 1)
    scale = gl.rsqrt(gl.sum(centred * centred, axis=1) * (1.0 / WIDTH) + EPS)
    gamma = gl.load(gamma_ptr + column).to(gl.float32)
    beta = gl.load(beta_ptr + column).to(gl.float32)
    # not ``centred`` again: it would be kept in registers that the sums need
    normed = gl.fma(sums, gl.broadcast(gl.expand_dims(scale, 1), sums)[0], gl.broadcast(gl.expand_dims(-mean * scale, 1), sums)[0])
    return normed * gl.expand_dims(gamma, 0) + gl.expand_dims(beta, 0)


@gluon.jit
def _keep_rows(rows_kept, values):
    """Rows in 16 bit, for the products that follow."""
    rows_kept.store(values.to(rows_kept.dtype))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _store_lines(rows_kept, first, copy_ptr, copy_stride, keep_ptr, page_ptr, page_half_stride, live, rows, KEEP: gl.constexpr):
    """Rows to ``copy`` and, where a row's chunk is kept, to its page."""
    lines = rows_kept.load(LINES)
    row = first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LINES))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LINES))
    gl.store(copy_ptr + gl.expand_dims(row * copy_stride, 1) + gl.expand_dims(column, 0), lines)
    if KEEP:
        keep = gl.load(keep_ptr + row % rows, mask=row % rows < live, other=-1)
        target = page_ptr + (first // rows) * page_half_stride + keep.to(gl.int64) * WIDTH
        gl.store(gl.expand_dims(target, 1) + gl.expand_dims(column, 0), lines, mask=gl.expand_dims(keep >= 0, 1))


@gluon.jit
def _store_half(folded, desc, stage, y, x):
    """Through shared memory, once what left from there before has been read."""
    tma.store_wait(0)
    gl.thread_barrier()
    stage.store(folded.to(stage.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(desc, [y, x], stage)


@gluon.jit
def _query_slices(rows_kept, folded_desc, stage, pool, full, empty, first, column, HEADS: gl.constexpr, BEFORE: gl.constexpr):
    """Queries folded with the keys' weights, a head at a time, in halves. BEFORE: slices that went through the ring before."""
    DTYPE: gl.constexpr = pool.dtype
    HALF: gl.constexpr = WIDTH // 2
    nothing = gl.zeros([GROUP, SLICE], gl.float32, layout=MIDDLE)
    zeros = gl.zeros([GROUP, HALF], gl.float32, layout=HALF_SUMS)
    slot = _wait_full(full, 2 * BEFORE, RING)
    middle = warpgroup_mma(rows_kept, pool.index(slot).permute((1, 0)), nothing, use_acc=False)
    mbarrier.arrive(empty.index(slot))
    for head in range(1, HEADS):
        packed = gl.convert_layout(middle.to(DTYPE), HALF_LEFT)
        item = 2 * (BEFORE + head)
        back = _wait_full(full, item - 1, RING)
        low = warpgroup_mma(packed, pool.index(back).slice(0, HALF, dim=1), zeros, use_acc=False, is_async=True)
        high = warpgroup_mma(packed, pool.index(back).slice(HALF, HALF, dim=1), zeros, use_acc=False, is_async=True)
        slot = _wait_full(full, item, RING)
        coming = warpgroup_mma(rows_kept, pool.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        low = warpgroup_mma_wait(2, deps=(low,))
        _store_half(low, folded_desc, stage, first, column + (head - 1) * WIDTH)
        high = warpgroup_mma_wait(1, deps=(high,))
        mbarrier.arrive(empty.index(back))
        _store_half(high, folded_desc, stage, first, column + (head - 1) * WIDTH + HALF)
        middle = warpgroup_mma_wait(0, deps=(coming,))
        mbarrier.arrive(empty.index(slot))
    packed = gl.convert_layout(middle.to(DTYPE), HALF_LEFT)
    back = _wait_full(full, 2 * (BEFORE + HEADS) - 1, RING)
    for part in gl.static_range(2):
        folded = warpgroup_mma(packed, pool.index(back).slice(part * HALF, HALF, dim=1), zeros, use_acc=False)
        _store_half(folded, folded_desc, stage, first, column + (HEADS - 1) * WIDTH + part * HALF)
    tma.store_wait(0)


@gluon.jit
def _consumer(
    pool, barriers, folded_desc, pointers, first_row, first_head,
    INDEX: gl.constexpr, HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr, EPS: gl.constexpr,
   
):  # fmt: skip
    """The work of one group: 64 rows."""
    (output_bias_ptr, in_bias_ptr, back_bias_ptr, gamma_ptr, beta_ptr, next_gamma_ptr, next_beta_ptr, x_ptr, copy_ptr, copy_stride,
     keep_ptr, page_ptr, page_half_stride, live, rows) = pointers  # fmt: skip
    full, empty, ring_full, ring_empty, rows_full, turn = barriers
    first = first_row + INDEX * GROUP
    rows_kept = pool.index(RING + INDEX)
    if SUM:
        column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, SUMS))
        row = first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, SUMS))
        at = x_ptr + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
        sums = gl.load(at) + gl.expand_dims(gl.load(output_bias_ptr + column).to(gl.float32), 0)
        sums = _sum_slices(sums, rows_kept, in_bias_ptr, pool, full, empty, turn, HEADS, INDEX, POOL, TILES)
        _await_drained(empty, RING + INDEX, HEADS * TILES, POOL)  # this group's rows go where attended rows were
        _keep_rows(rows_kept, _norm(sums, gamma_ptr, beta_ptr, EPS))
        sums += gl.expand_dims(gl.load(back_bias_ptr + column).to(gl.float32), 0)
        sums = _sum_slices(sums, rows_kept, in_bias_ptr, pool, ring_full, ring_empty, turn, HIDDEN, INDEX, RING, 2)
        if QUERY:
            gl.store(at, sums)
            sums = _norm(sums, next_gamma_ptr, next_beta_ptr, EPS)
        _keep_rows(rows_kept, sums)
        _store_lines(rows_kept, first, copy_ptr, copy_stride, keep_ptr, page_ptr, page_half_stride, live, rows, QUERY)
    else:
        mbarrier.wait(rows_full.index(INDEX), 0)
    if QUERY:
        if SUM:
            _await_drained(empty, STAGE, HEADS * TILES, POOL)
        HALF_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([GROUP, WIDTH // 2], pool.dtype)
        stage = pool.index(STAGE)._reinterpret(pool.dtype, [2, GROUP, WIDTH // 2], HALF_LAYOUT).index(INDEX)
        _query_slices(rows_kept, folded_desc, stage, pool, ring_full, ring_empty, first, first_head * WIDTH, HEADS, HIDDEN if SUM else 0)


@gluon.jit
def _ring_barriers(SIZE: gl.constexpr):
    """full: one copy has arrived; empty: both groups have read it."""
    full = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SIZE):
        mbarrier.init(full.index(slot), 1)
        mbarrier.init(empty.index(slot), 2)
    return full, empty


@gluon.jit
def block_rows(
    rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc, folded_desc,
    output_bias_ptr, in_bias_ptr, back_bias_ptr, gamma_ptr, beta_ptr, next_gamma_ptr, next_beta_ptr, live_ptr, x_ptr,
    copy_ptr, copy_stride, keep_ptr, page_ptr, page_half_stride,
    rows, HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr, EPS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """SUM: x += output(values of attended), x += feed-forward(LayerNorm(x)). QUERY: the query of LayerNorm(x). Grid: (all rows / 128, 1).

    HEADS: of the network; for QUERY alone, heads of a program, and the grid's second size says how many times.

    rows_desc: attended [all rows, HEADS * 256], without SUM the normalised rows [all rows, 256]; x float32 [all rows, 256]. Weights
    as in the file: value, query, key [HEADS * 64, 256], output [256, HEADS * 64], in [HIDDEN * 64, 256], back [256, HIDDEN * 64].
    SUM and QUERY: the next LayerNorm goes to ``copy`` in 16 bit, rows ``copy_stride`` apart, and to the pages of kept chunks (keep:
    row of the page memory, or -1), the query folded with the keys' weights to folded [all rows, HEADS * 256]. SUM alone, the end
    of a residual stream: the sum itself to ``copy``, x stays as it was.
    """
    first_row = gl.program_id(0) * (2 * GROUP)
    first_head = gl.program_id(1) * HEADS
    live = gl.load(live_ptr)
    if first_row % rows >= live:
        return
    DTYPE: gl.constexpr = rows_desc.dtype
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([GROUP, WIDTH], DTYPE)
    pool = gl.allocate_shared_memory(DTYPE, [POOL, GROUP, WIDTH], LAYOUT)
    full, empty = _ring_barriers(POOL)
    ring_full, ring_empty = _ring_barriers(RING)
    rows_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(rows_full.index(group), 1)
        mbarrier.init(turn.index(group), 1)
    fence_async_shared()
    barriers = (full, empty, ring_full, ring_empty, rows_full, turn)
    pointers = (
        output_bias_ptr, in_bias_ptr, back_bias_ptr, gamma_ptr, beta_ptr, next_gamma_ptr, next_beta_ptr, x_ptr, copy_ptr, copy_stride,
        keep_ptr, page_ptr, page_half_stride, live, rows,
    )  # fmt: skip
    descriptors = (rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc)
    gl.warp_specialize(
        [
            (_consumer, (pool, barriers, folded_desc, pointers, first_row, first_head, 0, HEADS, HIDDEN, SUM, QUERY, EPS)),
            (_consumer, (pool, barriers, folded_desc, pointers, first_row, first_head, 1, HEADS, HIDDEN, SUM, QUERY, EPS)),
            (_producer, (descriptors, pool, barriers, first_row, first_head, HEADS, HIDDEN, SUM, QUERY)),
        ],
        [4, 1],
        [240, 24],
    )
