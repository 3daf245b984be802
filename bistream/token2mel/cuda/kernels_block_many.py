# mypy: ignore-errors
"""Everything between two attentions for many rows, in one kernel: values and output, feed-forward, the next block's query.

All of it is pairs of products over slices of 64 features: rows times the slice's first weights give the middle, which (after
GELU in the feed-forward) is multiplied by the slice's second weights back to WIDTH. A slice is a head (values and
output; query and key projection, where nothing is summed) or 64 of the hidden features.

A program computes 64 rows and keeps their residual stream in registers. One producer warp issues tensor copies into rings in
shared memory for eight consumer warps. These issue a slice's second product together with the next slice's first one, and
compute the next middle while the second product runs. The middle goes through shared memory, because each half of the eight
warps has half of its features and needs all of them. Gluon, Hopper only.

Barriers are allocated only where they are used: their shared memory must not be reused for anything else.
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

from bistream.gpu.arithmetic import gelu, normalise
from bistream.gpu.barriers import barriers, ring_barriers

ROWS = gl.constexpr(64)  # of a program
SLICE = gl.constexpr(64)
WIDTH = gl.constexpr(256)
TILE_BYTES = gl.constexpr(32768)  # [64, 256] or [256, 64] in 16 bit
POOL = gl.constexpr(6)  # tiles in shared memory; the values' ring uses all of them
RING = gl.constexpr(5)  # tiles of the feed-forward's ring; after them come the program's rows in 16 bit
QUERY_RING = gl.constexpr(4)  # tiles of the query's ring; after them comes the staging tile of a head's result
MIDDLES = gl.constexpr(3)  # one is written while another is read by both halves' products, which may be a slice apart
VECTORS = gl.constexpr(6)  # of WIDTH features, see ``block_rows``
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16]))
MIDDLE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MIDDLE, 2))  # rows in registers; from shared memory, both halves would have to read them
COLUMNS = gl.constexpr(gl.SliceLayout(0, SUMS))
LINES = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0]))
VECTOR = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))


@gluon.jit
def _fetch(desc, y, x, pool, full, empty, item, SIZE: gl.constexpr, TURNED: gl.constexpr):
    """Copy the tile at (y, x) to its slot of the ring once that is free. TURNED: [256, 64], else [64, 256]."""
    slot = item % SIZE
    mbarrier.wait(empty.index(slot), (item // SIZE & 1) ^ 1)
    mbarrier.expect(full.index(slot), TILE_BYTES)
    target = pool.index(slot)
    if TURNED:
        target = target._reinterpret(target.dtype, [WIDTH, SLICE], target.layout)
    tma.async_copy_global_to_shared(desc, [y, x], full.index(slot), target)


@gluon.jit
def _await_drained(empty, slot, ITEMS: gl.constexpr, SIZE: gl.constexpr):
    """Wait until every tile that went through a slot of a ring, of ITEMS items in all, has been consumed."""
    mbarrier.wait(empty.index(slot), ((ITEMS - 1 - slot) // SIZE) & 1)


@gluon.jit
def _fetch_values(rows_desc, value_desc, output_desc, pool, full, empty, first, HEADS: gl.constexpr):
    """In the order of use in ``_sum_slices``: each head's rows and value weights, then the previous head's output weights."""
    for head in range(HEADS):
        item = 3 * head - gl.minimum(head, 1)
        _fetch(rows_desc, first, head * WIDTH, pool, full, empty, item, POOL, False)
        _fetch(value_desc, head * SLICE, 0, pool, full, empty, item + 1, POOL, False)
        if head > 0:
            _fetch(output_desc, 0, (head - 1) * SLICE, pool, full, empty, item + 2, POOL, True)
    _fetch(output_desc, 0, (HEADS - 1) * SLICE, pool, full, empty, 3 * HEADS - 1, POOL, True)


@gluon.jit
def _fetch_pairs(first_desc, second_desc, y, pool, full, empty, COUNT: gl.constexpr, SIZE: gl.constexpr, TURNED: gl.constexpr):
    """The same for slices whose rows are already loaded. TURNED: the second weights are [256, COUNT * 64], else as the first [.., 256]."""
    for index in range(COUNT):
        item = 2 * index - gl.minimum(index, 1)
        _fetch(first_desc, y + index * SLICE, 0, pool, full, empty, item, SIZE, False)
        if index > 0:
            before = y + (index - 1) * SLICE
            _fetch(second_desc, 0 if TURNED else before, before if TURNED else 0, pool, full, empty, item + 1, SIZE, TURNED)
    last = y + (COUNT - 1) * SLICE
    _fetch(second_desc, 0 if TURNED else last, last if TURNED else 0, pool, full, empty, 2 * COUNT - 1, SIZE, TURNED)


@gluon.jit
def _producer(
    descriptors, pool, bars, first, first_head, HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr,
):  # fmt: skip
    """The producer warp: fetches everything in the order of use."""
    rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc = descriptors
    full, empty, ring_full, ring_empty, query_full, query_empty, rows_full = bars
    if SUM:
        _fetch_values(rows_desc, value_desc, output_desc, pool, full, empty, first, HEADS)
        for slot in gl.static_range(RING):
            _await_drained(empty, slot, 3 * HEADS, POOL)
        _fetch_pairs(in_desc, back_desc, 0, pool, ring_full, ring_empty, HIDDEN, RING, True)
        if QUERY:
            for slot in gl.static_range(QUERY_RING):
                _await_drained(ring_empty, slot, 2 * HIDDEN, RING)
    else:
        mbarrier.expect(rows_full, TILE_BYTES)
        tma.async_copy_global_to_shared(rows_desc, [first, 0], rows_full, pool.index(RING))
    if QUERY:
        _fetch_pairs(query_desc, key_desc, first_head * SLICE, pool, query_full, query_empty, HEADS, QUERY_RING, False)


@gluon.jit
def _wait_full(full, item, SIZE: gl.constexpr):
    """Wait for an item of a ring; returns its slot."""
    slot = item % SIZE
    mbarrier.wait(full.index(slot), item // SIZE & 1)
    return slot


@gluon.jit
def _bring_vectors(pointers, in_bias_ptr, vectors, in_bias, HIDDEN: gl.constexpr):
    """Prefetch biases and norms to shared memory. All loads are issued before the first store."""
    column = gl.arange(0, WIDTH, layout=VECTOR)
    loaded = (
        gl.load(pointers[0] + column), gl.load(pointers[1] + column), gl.load(pointers[2] + column),
        gl.load(pointers[3] + column), gl.load(pointers[4] + column), gl.load(pointers[5] + column),
    )  # fmt: skip
    loaded_bias = gl.load(in_bias_ptr + gl.arange(0, HIDDEN * SLICE, layout=VECTOR))
    for number in gl.static_range(VECTORS):
        vectors.index(number).store(loaded[number])
    in_bias._reinterpret(in_bias.dtype, [HIDDEN * SLICE], in_bias.layout).store(loaded_bias)


@gluon.jit
def _back_weights(pool, slot):
    tile = pool.index(slot)
    return tile._reinterpret(tile.dtype, [WIDTH, SLICE], tile.layout).permute((1, 0))


@gluon.jit
def _share(shared, values):
    """Store values in 16 bit, visible to all warps, the tensor cores and the copy engine."""
    shared.store(values.to(shared.dtype))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _activated(middle, in_bias, index):
    bias = in_bias.index(index).load(gl.SliceLayout(0, MIDDLE)).to(gl.float32)
    return gelu(middle + gl.expand_dims(bias, 0))


@gluon.jit
def _sum_slices(sums, rows_kept, in_bias, pool, middles, full, empty, COUNT: gl.constexpr, SIZE: gl.constexpr, FIRSTS: gl.constexpr):
    """sums + all slices. FIRSTS: tiles of a slice's first product in the ring; 1: its rows are ``rows_kept``, GELU between the products."""
    KEPT: gl.constexpr = FIRSTS == 1
    nothing = gl.zeros([ROWS, SLICE], gl.float32, layout=MIDDLE)
    a = rows_kept.load(LEFT) if KEPT else pool.index(_wait_full(full, 0, SIZE))
    slot = _wait_full(full, FIRSTS - 1, SIZE)
    middle = warpgroup_mma(a, pool.index(slot).permute((1, 0)), nothing, use_acc=False)
    for number in gl.static_range(FIRSTS):
        mbarrier.arrive(empty.index(number))
    for index in range(COUNT - 1):
        if KEPT:
            middle = _activated(middle, in_bias, index)
        packed = middles.index(index % MIDDLES)
        _share(packed, middle)
        item = (index + 1) * (FIRSTS + 1) - 1  # the next slice's first tile; this slice's second weights come after its tiles
        if not KEPT:
            a = pool.index(_wait_full(full, item, SIZE))
        slot = _wait_full(full, item + FIRSTS - 1, SIZE)
        coming = warpgroup_mma(a, pool.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        back = _wait_full(full, item + FIRSTS, SIZE)
        sums = warpgroup_mma(packed, _back_weights(pool, back), sums, is_async=True)
        middle, sums = warpgroup_mma_wait(1, deps=(coming, sums))  # the sums may still be pending
        for number in gl.static_range(FIRSTS):
            mbarrier.arrive(empty.index((item + number) % SIZE))
        if index > 0:
            mbarrier.arrive(empty.index((item - 1) % SIZE))  # the previous slice's second product is complete, too
    if KEPT:
        middle = _activated(middle, in_bias, COUNT - 1)
    packed = middles.index((COUNT - 1) % MIDDLES)
    _share(packed, middle)
    LAST: gl.constexpr = COUNT * (FIRSTS + 1) - 1
    sums = warpgroup_mma(packed, _back_weights(pool, _wait_full(full, LAST, SIZE)), sums)
    mbarrier.arrive(empty.index((LAST - 1) % SIZE))
    mbarrier.arrive(empty.index(LAST % SIZE))
    return sums


@gluon.jit
def _plus(sums, vector):
    return sums + gl.expand_dims(vector.load(COLUMNS).to(gl.float32), 0)


@gluon.jit
def _norm(sums, gamma, beta, EPS: gl.constexpr):
    return _plus(normalise(sums, WIDTH, EPS) * gl.expand_dims(gamma.load(COLUMNS).to(gl.float32), 0), beta)


@gluon.jit
def _keep_pages(rows_kept, keep, page_ptr):
    """Rows of kept chunks to their pages. keep: row of the page memory, or -1."""
    lines = rows_kept.load(LINES)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LINES))
    target = page_ptr + keep.to(gl.int64) * WIDTH
    gl.store(gl.expand_dims(target, 1) + gl.expand_dims(column, 0), lines, mask=gl.expand_dims(keep >= 0, 1))


@gluon.jit
def _query_slices(middle, normed, folded_desc, pool, middles, full, empty, first, column, HEADS: gl.constexpr):
    """Queries folded with the keys' weights, per head. middle: of the first head. Each result is stored while the next is computed."""
    nothing = gl.zeros([ROWS, SLICE], gl.float32, layout=MIDDLE)
    zeros = gl.zeros([ROWS, WIDTH], gl.float32, layout=SUMS)
    stage = pool.index(QUERY_RING)
    held = zeros.to(pool.dtype)
    for head in range(HEADS - 1):
        packed = middles.index(head % MIDDLES)
        if head > 0:
            stage.store(held)
        _share(packed, middle)
        if head > 0:
            tma.async_copy_shared_to_global(folded_desc, [first, column + (head - 1) * WIDTH], stage)
        slot = _wait_full(full, 2 * head + 1, QUERY_RING)
        back = _wait_full(full, 2 * head + 2, QUERY_RING)
        coming = warpgroup_mma(normed, pool.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        folded = warpgroup_mma(packed, pool.index(back), zeros, use_acc=False, is_async=True)
        middle, folded = warpgroup_mma_wait(0, deps=(coming, folded))
        held = folded.to(pool.dtype)
        tma.store_wait(0)
        gl.thread_barrier()  # the staging tile is free again
        mbarrier.arrive(empty.index((2 * head + 1) % QUERY_RING))
        mbarrier.arrive(empty.index((2 * head + 2) % QUERY_RING))
    packed = middles.index((HEADS - 1) % MIDDLES)
    stage.store(held)
    _share(packed, middle)
    tma.async_copy_shared_to_global(folded_desc, [first, column + (HEADS - 2) * WIDTH], stage)
    back = _wait_full(full, 2 * HEADS - 1, QUERY_RING)
    folded = warpgroup_mma(packed, pool.index(back), zeros, use_acc=False)
    tma.store_wait(0)
    gl.thread_barrier()
    _share(stage, folded)
    tma.async_copy_shared_to_global(folded_desc, [first, column + (HEADS - 1) * WIDTH], stage)


@gluon.jit
def _consumer(
    pool, middles, vectors, in_bias, bars, folded_desc, copy_desc, vector_pointers, pointers, first, first_head,
    HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """The consumer warps."""
    in_bias_ptr, x_ptr, keep_ptr, page_ptr, page_half_stride, live, rows = pointers
    full, empty, ring_full, ring_empty, query_full, query_empty, rows_full = bars
    rows_kept = pool.index(RING)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SUMS))
    at = x_ptr + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(gl.arange(0, WIDTH, layout=COLUMNS), 0)
    line = first % rows + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LINES))
    if SUM:
        sums = gl.load(at)
        if QUERY:
            keep = gl.load(keep_ptr + line, mask=line < live, other=-1)  # loaded early to hide the latency
        _bring_vectors(vector_pointers, in_bias_ptr, vectors, in_bias, HIDDEN)
        sums = _sum_slices(sums, rows_kept, in_bias, pool, middles, full, empty, HEADS, POOL, 2)
        sums = _plus(sums, vectors.index(0))
        _share(rows_kept, _norm(sums, vectors.index(1), vectors.index(2), EPS))
        sums = _plus(sums, vectors.index(3))
        sums = _sum_slices(sums, rows_kept, in_bias, pool, middles, ring_full, ring_empty, HIDDEN, RING, 1)
        _share(rows_kept, _norm(sums, vectors.index(4), vectors.index(5), EPS) if QUERY else sums)
        tma.async_copy_shared_to_global(copy_desc, [first, 0], rows_kept)
    else:
        mbarrier.wait(rows_full, 0)
    if QUERY:
        normed = rows_kept.load(LEFT)
        slot = _wait_full(query_full, 0, QUERY_RING)
        nothing = gl.zeros([ROWS, SLICE], gl.float32, layout=MIDDLE)
        middle = warpgroup_mma(normed, pool.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        if SUM:
            gl.store(at, sums)
            _keep_pages(rows_kept, keep, page_ptr + (first // rows) * page_half_stride)
        middle = warpgroup_mma_wait(0, deps=(middle,))
        mbarrier.arrive(query_empty.index(0))
        _query_slices(middle, normed, folded_desc, pool, middles, query_full, query_empty, first, first_head * WIDTH, HEADS)
    tma.store_wait(0)


@gluon.jit
def block_rows(
    rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc, folded_desc, copy_desc,
    output_bias_ptr, in_bias_ptr, back_bias_ptr, gamma_ptr, beta_ptr, next_gamma_ptr, next_beta_ptr, live_ptr, x_ptr,
    keep_ptr, page_ptr, page_half_stride,
    rows, HEADS: gl.constexpr, HIDDEN: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr, EPS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """SUM: x += output(values of attended), x += feed-forward(LayerNorm(x)). QUERY: the query of LayerNorm(x). Grid: (all rows / 64, 1).

    HEADS: of the network; for QUERY alone, heads per program, and the grid's second size is the number of such groups.

    rows_desc: attended [all rows, HEADS * 256], without SUM the normalised rows [all rows, 256]; x float32 [all rows, 256]. Weights
    as in the file: value, query, key [HEADS * 64, 256], output [256, HEADS * 64], in [HIDDEN * 64, 256], back [256, HIDDEN * 64].
    SUM and QUERY: the next LayerNorm goes to ``copy`` [all rows, 256] in 16 bit and to the pages of kept chunks (keep: row of the page
    memory, or -1), the query folded with the keys' weights to folded [all rows, HEADS * 256]. SUM alone, the end of a residual stream:
    the sum itself to ``copy``, x is unchanged.
    """
    gl.static_assert(num_warps == 8)
    first = gl.program_id(0) * ROWS
    first_head = gl.program_id(1) * HEADS
    live = gl.load(live_ptr)
    if first % rows >= live:
        return
    DTYPE: gl.constexpr = rows_desc.dtype
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    pool = gl.allocate_shared_memory(DTYPE, [POOL, ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE))
    middles = gl.allocate_shared_memory(DTYPE, [MIDDLES, ROWS, SLICE], gl.NVMMASharedLayout.get_default_for([ROWS, SLICE], DTYPE))
    vectors = gl.allocate_shared_memory(DTYPE, [VECTORS, WIDTH], FLAT)
    in_bias = gl.allocate_shared_memory(DTYPE, [HIDDEN, SLICE], FLAT)
    if SUM:
        full, empty = ring_barriers(POOL, 1, 1)
        ring_full, ring_empty = ring_barriers(RING, 1, 1)
        rows_full = full.index(0)
        query_full, query_empty = ring_barriers(QUERY_RING, 1, 1) if QUERY else (full, empty)
    else:
        query_full, query_empty = ring_barriers(QUERY_RING, 1, 1)
        full, empty, ring_full, ring_empty = query_full, query_empty, query_full, query_empty
        rows_full = barriers(1, 1).index(0)
    fence_async_shared()
    bars = (full, empty, ring_full, ring_empty, query_full, query_empty, rows_full)
    pointers = (in_bias_ptr, x_ptr, keep_ptr, page_ptr, page_half_stride, live, rows)
    descriptors = (rows_desc, value_desc, output_desc, in_desc, back_desc, query_desc, key_desc)
    vector_pointers = (output_bias_ptr, gamma_ptr, beta_ptr, back_bias_ptr, next_gamma_ptr, next_beta_ptr)
    gl.warp_specialize(
        [
            (_consumer, (pool, middles, vectors, in_bias, bars, folded_desc, copy_desc, vector_pointers, pointers, first,
                         first_head, HEADS, HIDDEN, SUM, QUERY, EPS)),
            (_producer, (descriptors, pool, bars, first, first_head, HEADS, HIDDEN, SUM, QUERY)),
        ],
        [1],
        [24],
    )  # fmt: skip
