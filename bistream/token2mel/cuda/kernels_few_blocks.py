# mypy: ignore-errors
"""A transformer block of the estimator for few rows in four kernels, in Gluon. Hopper only.

``query_few``: LayerNorm and folded queries. ``attend_few``: attention over one session's chunks in splits. ``join_few``: splits joined,
values, output projection. ``feed_forward_few``. The algebra is that of ``kernels_attention``: the inputs X are keys and values at once.

The residual stream x is float32 in two buffers that take turns, since a sum over programs cannot go where others still read:
``query_few`` reads x from ``even`` and sets ``odd`` to x plus the output's bias; ``join_few`` adds to ``odd`` and clears ``even``;
``feed_forward_few`` reads ``odd`` and adds its result and x itself to ``even``. The order of additions is left to the memory, so the last
bits of a result differ from run to run.

A query tile and a key tile are one chunk: a page, or CHUNK new frames of a session. So a tile of keys is visible as a whole.

Programs are counted in one dimension. Those without work wait for the predecessor before they end: they keep their place on a
multiprocessor, so that two programs of the next kernel do not share one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from bistream.token2mel.cuda.kernels_few_common import (
    TILE,
    copy_rows,
    fast_inverse,
    gelu,
    layer_norm,
    mish,
    product,
    product_layout,
    start_successor,
    wait_predecessor,
)

HIDDEN = gl.constexpr(-1.0e30)  # score of what is not there; finite, so that differences are numbers


@gluon.jit
def _copy_chunk(slot, source, count, WIDTH: gl.constexpr, num_warps: gl.constexpr):
    """Start copying ``count`` rows of a chunk; behind them zeros."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [num_warps, 1], [1, 0])
    row = gl.arange(0, TILE, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    at = source + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(slot, at, mask=gl.expand_dims(row < count, 1))


@gluon.jit(do_not_specialize=["rows"])
def query_few(
    x_ptr, raw_ptr, raw_gamma_ptr, raw_beta_ptr, gamma_ptr, beta_ptr, wq_ptr, wk_ptr, bias_ptr, live_ptr, keep_ptr,
    odd_ptr, normed_ptr, page_ptr, page_half_stride, query_ptr, rows,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, HEAD: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, EPS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """LayerNorm, query projection, times the key projection: 16 bit [2 rows, HEADS, WIDTH]. Grid: HEADS * 2 rows / ROWS.

    FIRST: x is not the stream but the shortcut of a residual block, and mish(LayerNorm(raw)) is added. The programs of a row tile
    share what else is to be written: the normalised rows, also to the page that keeps them (keep: row of the page memory, or -1), and
    x plus the output's bias to ``odd``.
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    first = gl.program_id(0) // HEADS * ROWS
    live = gl.where(first < 2 * rows, gl.load(live_ptr), 0)
    if first % rows >= live:
        wait_predecessor()
        return
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [num_warps, 1], [1, 0])
    PRODUCT: gl.constexpr = product_layout(ROWS, num_warps)
    DTYPE: gl.constexpr = wq_ptr.dtype.element_ty
    normed = gl.allocate_shared_memory(DTYPE, [ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE))
    wq = gl.allocate_shared_memory(DTYPE, [HEAD, WIDTH], gl.NVMMASharedLayout.get_default_for([HEAD, WIDTH], DTYPE))
    wk = gl.allocate_shared_memory(DTYPE, [HEAD, WIDTH], gl.NVMMASharedLayout.get_default_for([HEAD, WIDTH], DTYPE))
    copy_rows(wq, wq_ptr + head * (HEAD * WIDTH), WIDTH, HEAD, WIDTH, num_warps)
    copy_rows(wk, wk_ptr + head * (HEAD * WIDTH), WIDTH, HEAD, WIDTH, num_warps)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    gamma = gl.load(gamma_ptr + column)
    beta = gl.load(beta_ptr + column)
    bias = gl.load(bias_ptr + column)
    if FIRST:
        raw_gamma = gl.load(raw_gamma_ptr + column)
        raw_beta = gl.load(raw_beta_ptr + column)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    exists = row % rows < live
    keep = gl.load(keep_ptr + row % rows, mask=exists, other=-1).to(gl.int64)
    wait_predecessor()

    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    x = gl.load(x_ptr + at)
    if FIRST:
        x += mish(layer_norm(gl.load(raw_ptr + at).to(gl.float32), raw_gamma, raw_beta, WIDTH, EPS))
    xn = layer_norm(x, gamma, beta, WIDTH, EPS).to(DTYPE)
    normed.store(xn)
    mine = gl.expand_dims(column // (WIDTH // HEADS) == head, 0)
    gl.store(odd_ptr + at, x + gl.expand_dims(bias.to(gl.float32), 0), mask=mine & gl.expand_dims(exists, 1))
    gl.store(normed_ptr + at, xn, mask=mine & gl.expand_dims(exists, 1))
    page = page_ptr + (first // rows) * page_half_stride
    gl.store(page + gl.expand_dims(keep * WIDTH, 1) + gl.expand_dims(column, 0), xn, mask=mine & gl.expand_dims(keep >= 0, 1))
    async_copy.wait_group(0)
    gl.thread_barrier()
    small = product(normed, wq, WIDTH, HEAD, ROWS, 4, num_warps)
    left = gl.convert_layout(small.to(DTYPE), gl.DotOperandLayout(0, PRODUCT, 2))
    folded = mma_v2(left, wk.load(gl.DotOperandLayout(1, PRODUCT, 2)), gl.zeros([ROWS, WIDTH], gl.float32, layout=PRODUCT))
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, PRODUCT))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, PRODUCT))
    target = query_ptr + gl.expand_dims(row * (HEADS * WIDTH) + head * WIDTH, 1) + gl.expand_dims(column, 0)
    gl.store(target, folded.to(DTYPE))


@gluon.jit
def _store_lanes(target, out, count, WIDTH: gl.constexpr, HEADS: gl.constexpr):
    """The first ``count`` rows of one head's ``out`` [TILE, WIDTH], columns in the order of ``packing.lane_order``, 16 bytes a lane."""
    out = out.reshape((TILE, WIDTH // 32, 2, 2, 4, 2)).permute((0, 1, 4, 2, 3, 5)).reshape((TILE, WIDTH))
    LANES: gl.constexpr = gl.DistributedLinearLayout(  # as it is, but known to be 8 numbers in a row of a thread
        [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64], [0, 128]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [],
        [TILE, WIDTH],
    )  # fmt: skip
    out = gl.convert_layout(out, LANES, assert_trivial=True)
    local = gl.arange(0, TILE, layout=gl.SliceLayout(1, LANES))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LANES))
    rows = gl.expand_dims(local * (HEADS * WIDTH), 1)
    gl.store(target + rows + gl.expand_dims(column, 0), out, mask=gl.expand_dims(local < count, 1))


@gluon.jit(do_not_specialize=["rows"])
def attend_few(
    query_ptr, normed_ptr, page_ptr, page_half_stride, count_ptr, item_ptr, table_ptr, attended_ptr, lse_ptr, scale, rows,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, CHUNK: gl.constexpr, TABLE: gl.constexpr, LEFT: gl.constexpr, SLOTS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """softmax(query . X) X of one chunk of new frames, one head and one split of the keys. Grid: HEADS * 2 halves * items.

    count: int32, number of items. item: int32 [items, 8], see ``layout``. attended: 16 bit [splits, 2 rows, HEADS, WIDTH], columns in
    the order of ``packing.lane_order``; lse: float32 [splits, 2 rows, HEADS], logarithm (base 2) of the sum.
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    half = gl.program_id(0) // HEADS % 2
    item = gl.program_id(0) // (2 * HEADS)
    if item >= gl.load(count_ptr):
        wait_predecessor()
        return
    gl.static_assert(num_warps == 4)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [num_warps, 1], [1, 0])
    DTYPE: gl.constexpr = page_ptr.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE, WIDTH], DTYPE)
    record = item_ptr + item * 8
    first_row = gl.load(record) + half * rows
    count = gl.load(record + 1)
    stored = gl.load(record + 2)
    chunk = gl.load(record + 3)
    table = table_ptr + gl.load(record + 4) * TABLE
    split = gl.load(record + 5)
    splits = gl.load(record + 6)
    last = stored + chunk  # the tile's own chunk among the keys
    first_key = (gl.maximum(last - LEFT, 0) if LEFT else 0) + split
    if first_key > last:
        wait_predecessor()
        return
    pages = page_ptr + half * page_half_stride
    fresh = normed_ptr + (first_row - chunk * CHUNK) * WIDTH
    query = gl.allocate_shared_memory(DTYPE, [TILE, WIDTH], SHARED)
    x = gl.allocate_shared_memory(DTYPE, [SLOTS, TILE, WIDTH], SHARED)
    for slot in gl.static_range(SLOTS):
        key = first_key + slot * splits
        if key < stored:
            _copy_chunk(x.index(slot), pages + gl.load(table + key).to(gl.int64) * (CHUNK * WIDTH), CHUNK, WIDTH, num_warps)
    wait_predecessor()

    local = gl.arange(0, TILE, layout=gl.SliceLayout(1, COPY))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, COPY))
    source = query_ptr + gl.expand_dims((first_row + local) * (HEADS * WIDTH) + head * WIDTH, 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(query, source, mask=gl.expand_dims(local < count, 1))
    for slot in gl.static_range(SLOTS):
        key = first_key + slot * splits
        if (key >= stored) & (key <= last):
            _copy_chunk(x.index(slot), fresh + (key - stored) * (CHUNK * WIDTH), gl.where(key == last, count, CHUNK), WIDTH, num_warps)
        async_copy.commit_group()

    sums = gl.zeros([TILE, WIDTH], gl.float32, layout=SUMS)
    highest = gl.full([TILE], HIDDEN, gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([TILE], gl.float32, layout=gl.SliceLayout(1, SCORES))
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
    slot = 0
    for key in range(first_key, last + 1, splits):
        async_copy.wait_group(SLOTS - 1)
        fence_async_shared()
        gl.thread_barrier()
        keys = x.index(slot)
        scores = warpgroup_mma(query, keys.permute((1, 0)), gl.zeros([TILE, TILE], gl.float32, layout=SCORES), use_acc=False)
        visible = column < gl.where(key == last, count, CHUNK)
        scores = gl.where(gl.expand_dims(visible, 0), scores * scale, HIDDEN)
        raised = gl.maximum(highest, gl.max(scores, axis=1))
        weights = gl.exp2(scores - gl.expand_dims(raised, 1))
        fade = gl.exp2(highest - raised)
        highest = raised
        total = total * fade + gl.sum(weights, axis=1)
        sums = sums * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, SUMS)), 1)
        left = gl.convert_layout(weights.to(DTYPE), gl.DotOperandLayout(0, SUMS, 2))
        sums = warpgroup_mma(left, keys, sums)
        gl.thread_barrier()
        ahead = key + SLOTS * splits
        if ahead <= last:
            if ahead < stored:
                _copy_chunk(keys, pages + gl.load(table + ahead).to(gl.int64) * (CHUNK * WIDTH), CHUNK, WIDTH, num_warps)
            else:
                _copy_chunk(keys, fresh + (ahead - stored) * (CHUNK * WIDTH), gl.where(ahead == last, count, CHUNK), WIDTH, num_warps)
        async_copy.commit_group()
        slot = gl.where(slot == SLOTS - 1, 0, slot + 1)
    async_copy.wait_group(0)

    inverse = fast_inverse(gl.convert_layout(total, gl.SliceLayout(1, SUMS)))
    base = split * (2 * rows) + first_row
    _store_lanes(attended_ptr + base * (HEADS * WIDTH) + head * WIDTH, (sums * gl.expand_dims(inverse, 1)).to(DTYPE), count, WIDTH, HEADS)
    local = gl.arange(0, TILE, layout=gl.SliceLayout(1, SCORES))
    gl.store(lse_ptr + (base + local) * HEADS + head, highest + gl.log2(total), mask=local < count)


@gluon.jit(do_not_specialize=["rows"])
def join_few(
    attended_ptr, lse_ptr, splits_ptr, wv_ptr, wo_ptr, live_ptr, odd_ptr, even_ptr, rows,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, HEAD: gl.constexpr, SPLITS: gl.constexpr, ROWS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Splits joined, values, output projection: one head's part added to ``odd``. Grid: HEADS * 2 rows / ROWS.

    splits: int32 [rows], how many of SPLITS there are. wv: [HEADS * HEAD, WIDTH], columns in ``packing.lane_order``.
    wo: [WIDTH, HEADS * HEAD].
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    first = gl.program_id(0) // HEADS * ROWS
    live = gl.where(first < 2 * rows, gl.load(live_ptr), 0)
    if first % rows >= live:
        wait_predecessor()
        return
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [num_warps, 1], [1, 0])
    PRODUCT: gl.constexpr = product_layout(ROWS, num_warps)
    DTYPE: gl.constexpr = wv_ptr.dtype.element_ty
    joined = gl.allocate_shared_memory(DTYPE, [ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE))
    wv = gl.allocate_shared_memory(DTYPE, [HEAD, WIDTH], gl.NVMMASharedLayout.get_default_for([HEAD, WIDTH], DTYPE))
    wo = gl.allocate_shared_memory(DTYPE, [WIDTH, HEAD], gl.NVMMASharedLayout.get_default_for([WIDTH, HEAD], DTYPE))
    copy_rows(wv, wv_ptr + head * (HEAD * WIDTH), WIDTH, HEAD, WIDTH, num_warps)
    copy_rows(wo, wo_ptr + head * HEAD, HEADS * HEAD, WIDTH, HEAD, num_warps)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    exists = row % rows < live
    splits = gl.load(splits_ptr + row % rows, mask=exists, other=0)
    wait_predecessor()

    parts = ()
    highest = gl.full([ROWS], HIDDEN, gl.float32, layout=gl.SliceLayout(1, LAYOUT))
    for split in gl.static_range(SPLITS):
        number = (split * 2 * rows + row) * HEADS + head
        lse = gl.load(lse_ptr + number, mask=split < splits, other=HIDDEN)
        at = gl.expand_dims(number * WIDTH, 1) + gl.expand_dims(column, 0)
        part = gl.load(attended_ptr + at, mask=gl.expand_dims(split < splits, 1), other=0.0)
        highest = gl.maximum(highest, lse)
        parts = parts + ((lse, part),)
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, LAYOUT))
    sums = gl.zeros([ROWS, WIDTH], gl.float32, layout=LAYOUT)
    for split in gl.static_range(SPLITS):
        lse, part = parts[split]
        share = gl.exp2(lse - highest)
        total += share
        sums += part.to(gl.float32) * gl.expand_dims(share, 1)
    sums = sums * gl.expand_dims(fast_inverse(total), 1)
    joined.store(sums.to(DTYPE))
    mine = gl.expand_dims(exists, 1) & gl.expand_dims(column // (WIDTH // HEADS) == head, 0)
    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    gl.store(even_ptr + at, gl.zeros([ROWS, WIDTH], gl.float32, layout=LAYOUT), mask=mine)
    async_copy.wait_group(0)
    gl.thread_barrier()
    out_ptr = odd_ptr + first * WIDTH
    row_end = live - first % rows
    values = product(joined, wv, WIDTH, HEAD, ROWS, 4, num_warps)
    left = gl.convert_layout(values.to(DTYPE), gl.DotOperandLayout(0, PRODUCT, 2))
    right = wo.permute((1, 0)).load(gl.DotOperandLayout(1, PRODUCT, 2))
    out = mma_v2(left, right, gl.zeros([ROWS, WIDTH], gl.float32, layout=PRODUCT))
    local = gl.arange(0, ROWS, layout=gl.SliceLayout(1, PRODUCT))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, PRODUCT))
    at = out_ptr + gl.expand_dims(local * WIDTH, 1) + gl.expand_dims(column, 0)
    exists = gl.expand_dims(local < row_end, 1) & gl.expand_dims(column >= 0, 0)
    gl.atomic_add(at, out, mask=exists, sem="relaxed")


@gluon.jit(do_not_specialize=["rows"])
def feed_forward_few(
    odd_ptr, gamma_ptr, beta_ptr, w_in_ptr, bias_in_ptr, w_out_ptr, bias_out_ptr, live_ptr, even_ptr, rows,
    WIDTH: gl.constexpr, SIZE: gl.constexpr, DEPTH: gl.constexpr, ROWS: gl.constexpr, EPS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """LayerNorm and the part of DEPTH hidden features: added to ``even``. Grid: SIZE / DEPTH * 2 rows / ROWS.

    w_in: [SIZE, WIDTH]; w_out: [WIDTH, SIZE]. The programs of a row tile share the addition of x and the bias.
    """
    start_successor()
    part = gl.program_id(0) % (SIZE // DEPTH)
    first = gl.program_id(0) // (SIZE // DEPTH) * ROWS
    live = gl.where(first < 2 * rows, gl.load(live_ptr), 0)
    if first % rows >= live:
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
    mine = gl.expand_dims(row % rows < live, 1) & gl.expand_dims(column // (WIDTH * DEPTH // SIZE) == part, 0)
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
    LINES: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
    total = gl.convert_layout(total.permute((1, 0)), LINES)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LINES))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LINES))
    exists = gl.expand_dims(row % rows < live, 1) & gl.expand_dims(column >= 0, 0)
    gl.atomic_add(even_ptr + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0), total, mask=exists, sem="relaxed")
