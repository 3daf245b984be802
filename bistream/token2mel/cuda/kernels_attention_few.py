# mypy: ignore-errors
"""The attention of a transformer block of the estimator for few rows in two or three kernels, in Gluon. Hopper only.

``query_few``: LayerNorm and folded queries. ``attend_few``: attention over one session's chunks and the values, with the output
projection where keys are not split. ``join_few``: splits merged, output projection. ``kernels_feed_forward`` is the rest of the block.
The algebra is that of ``kernels_attention_many``: the inputs X are keys and values at once. All rows are those of one guidance half.

The residual stream x is float32 in two alternating buffers, since programs cannot add to rows that others still read:
``query_few`` reads x from ``even`` and sets ``odd`` to x plus the output's bias; the output projection is added to ``odd``, and
``attend_few`` clears ``even``; ``feed_forward_few`` reads ``odd`` and adds its result and x itself to ``even``. The order of the
atomic additions is not fixed, so the last bits of a result differ from run to run.

A query tile and a key tile are one chunk: a page, or CHUNK new frames of a session. So a tile of keys is visible as a whole.

Grids are one-dimensional. Programs without work wait for the predecessor before they exit, so that no kernel ends before it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from bistream.gpu.arithmetic import fast_inverse, fast_mish, layer_norm, soften
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.batch import CHUNK_ITEM_NUMBERS, ChunkItemField
from bistream.token2mel.cuda.pieces_few import TILE, add_rows, copy_rows, product_layout

ITEM_NUMBERS = gl.constexpr(CHUNK_ITEM_NUMBERS)
ITEM_FIRST_ROW = gl.constexpr(int(ChunkItemField.FIRST_ROW))
ITEM_ROWS = gl.constexpr(int(ChunkItemField.ROWS))
ITEM_STORED = gl.constexpr(int(ChunkItemField.STORED))
ITEM_CHUNK = gl.constexpr(int(ChunkItemField.CHUNK))
ITEM_SESSION = gl.constexpr(int(ChunkItemField.SESSION))
ITEM_SPLIT = gl.constexpr(int(ChunkItemField.SPLIT))
ITEM_SPLITS = gl.constexpr(int(ChunkItemField.SPLITS))
HIDDEN = gl.constexpr(-1.0e30)  # score of a missing key; finite, so that differences are not NaN


@gluon.jit
def _copy_chunk(slot, source, count, WIDTH: gl.constexpr, num_warps: gl.constexpr):
    """Start copying ``count`` rows of a chunk; the rest reads as zero."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [num_warps, 1], [1, 0])
    row = gl.arange(0, TILE, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    at = source + gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(slot, at, mask=gl.expand_dims(row < count, 1))


@gluon.constexpr_function
def _line_layout(rows, width, num_warps):
    """Layout of a transposed product [width, rows]: a thread has 8 consecutive features of ``weights.lane_order``."""
    more = [[8 << bit, 0] for bit in range((rows * 4 // num_warps // 8).bit_length() - 1)]
    warps = [[0, width // 4], [0, width // 2]] + ([[rows // 2, 0]] if num_warps == 8 else [])
    lanes = [[2, 0], [4, 0], [0, 8], [0, 16], [0, 32]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [1, 0], *more], lanes, warps, [], [rows, width])


@gluon.jit
def _as_lines(total, ROWS: gl.constexpr, WIDTH: gl.constexpr, num_warps: gl.constexpr):
    """A product [WIDTH, ROWS] with features in ``weights.lane_order``, as [ROWS, WIDTH] with 8 consecutive numbers per thread."""
    total = total.reshape((4, 4, 2, 8, ROWS)).permute((4, 1, 3, 0, 2)).reshape((ROWS, WIDTH))
    return gl.convert_layout(total, _line_layout(ROWS, WIDTH, num_warps), assert_trivial=True)


@gluon.jit
def query_few(
    x_ptr, raw_ptr, raw_gamma_ptr, raw_beta_ptr, gamma_ptr, beta_ptr, wq_ptr, wk_ptr, bias_ptr, live_ptr, keep_ptr,
    odd_ptr, normed_ptr, page_ptr, query_ptr,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, HEAD: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, EPS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """LayerNorm, query projection, times the key projection: 16 bit [rows, HEADS, WIDTH]. Grid: HEADS * rows / ROWS.

    FIRST: x is not the stream but the shortcut of a residual block, and mish(LayerNorm(raw)) is added. The programs of a row tile
    divide the other stores: the normalised rows, also to the page that keeps them (keep: row of the page memory, or -1), and x plus the
    output's bias to ``odd``. wq: [HEADS * HEAD, WIDTH]. wk: [HEADS, WIDTH in ``weights.lane_order``, HEAD].
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    first = gl.program_id(0) // HEADS * ROWS
    live = gl.load(live_ptr)
    if first >= live:
        wait_predecessor()
        return
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [num_warps, 1], [1, 0])
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, num_warps // 4], [16, ROWS * 4 // num_warps, 16])
    DTYPE: gl.constexpr = wq_ptr.dtype.element_ty
    normed = gl.allocate_shared_memory(DTYPE, [ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE))
    wq = gl.allocate_shared_memory(DTYPE, [HEAD, WIDTH], gl.NVMMASharedLayout.get_default_for([HEAD, WIDTH], DTYPE))
    wk = gl.allocate_shared_memory(DTYPE, [WIDTH, HEAD], gl.NVMMASharedLayout.get_default_for([WIDTH, HEAD], DTYPE))
    copy_rows(wq, wq_ptr + head * (HEAD * WIDTH), WIDTH, HEAD, WIDTH, num_warps)
    copy_rows(wk, wk_ptr + head * (HEAD * WIDTH), HEAD, WIDTH, HEAD, num_warps)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    gamma = gl.load(gamma_ptr + column)
    beta = gl.load(beta_ptr + column)
    bias = gl.load(bias_ptr + column)
    if FIRST:
        raw_gamma = gl.load(raw_gamma_ptr + column)
        raw_beta = gl.load(raw_beta_ptr + column)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    exists = row < live
    keep = gl.load(keep_ptr + row, mask=exists, other=-1).to(gl.int64)
    wait_predecessor()

    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    x = gl.load(x_ptr + at)
    if FIRST:
        x += fast_mish(layer_norm(gl.load(raw_ptr + at).to(gl.float32), raw_gamma, raw_beta, WIDTH, EPS))
    xn = layer_norm(x, gamma, beta, WIDTH, EPS).to(DTYPE)
    normed.store(xn)
    mine = gl.expand_dims(column // (WIDTH // HEADS) == head, 0)
    gl.store(odd_ptr + at, x + gl.expand_dims(bias.to(gl.float32), 0), mask=mine & gl.expand_dims(exists, 1))
    gl.store(normed_ptr + at, xn, mask=mine & gl.expand_dims(exists, 1))
    gl.store(page_ptr + gl.expand_dims(keep * WIDTH, 1) + gl.expand_dims(column, 0), xn, mask=mine & gl.expand_dims(keep >= 0, 1))
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    small = warpgroup_mma(wq, normed.permute((1, 0)), gl.zeros([HEAD, ROWS], gl.float32, layout=PRODUCT), use_acc=False)
    query = gl.allocate_shared_memory(DTYPE, [ROWS, HEAD], gl.NVMMASharedLayout.get_default_for([ROWS, HEAD], DTYPE))
    query.permute((1, 0)).store(small.to(DTYPE))
    fence_async_shared()
    gl.thread_barrier()
    folded = warpgroup_mma(wk, query.permute((1, 0)), gl.zeros([WIDTH, ROWS], gl.float32, layout=PRODUCT), use_acc=False)
    lines = _as_lines(folded.to(DTYPE), ROWS, WIDTH, num_warps)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, lines.type.layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, lines.type.layout))
    gl.store(query_ptr + gl.expand_dims(row * (HEADS * WIDTH) + head * WIDTH, 1) + gl.expand_dims(column, 0), lines)


@gluon.jit
def _copy_item(
    slot, number, keys, sources, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr, STORED: gl.constexpr, FRESH: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Start copying item ``number``: tiles of keys, then the weights of the values and, with OUT, of the output.

    keys: first tile of this split, stride, tiles of this split, stored tiles, last tile, its rows. sources: page table, pages, new
    rows, both weights. STORED, FRESH: kinds to copy (FRESH: new rows; STORED: everything that does not depend on this call).
    """
    first, step, tiles, stored, last, count = keys
    table, pages, fresh, wv, wo = sources
    key = first + number * step
    if (key >= stored) & (key <= last):
        if FRESH:
            _copy_chunk(slot, fresh + (key - stored) * (CHUNK * WIDTH), gl.where(key == last, count, CHUNK), WIDTH, num_warps)
    else:
        if STORED:
            if key < stored:
                _copy_chunk(slot, pages + gl.load(table + key).to(gl.int64) * (CHUNK * WIDTH), CHUNK, WIDTH, num_warps)
            elif number == tiles:
                _copy_chunk(slot, wv, TILE, WIDTH, num_warps)
            else:
                if OUT:
                    if number == tiles + 1:
                        _copy_chunk(slot, wo, TILE, WIDTH, num_warps)


@gluon.jit(do_not_specialize=["rows"])
def attend_few(
    query_ptr, normed_ptr, page_ptr, count_ptr, item_ptr, table_ptr, wv_ptr, wo_ptr, parts_ptr, lse_ptr,
    odd_ptr, even_ptr, scale, rows,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, HEAD: gl.constexpr, CHUNK: gl.constexpr, TABLE: gl.constexpr, LEFT: gl.constexpr,
    SPLITS: gl.constexpr, SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Values of softmax(query . X) X for one chunk of new frames, one head and one split of the keys. Grid: HEADS * items.

    With SPLITS 1 the head's part of the output is added to ``odd``. With more, values go to ``parts``, 16 bit
    [SPLITS, rows, HEADS, HEAD], and the log-sum-exp of the scores (base 2) to ``lse``, float32 [SPLITS, rows, HEADS]: see ``join_few``.
    count: int32, number of items. item: int32 [items, ITEM_NUMBERS], see ``batch.ChunkItemField``. wv: [HEADS * HEAD, WIDTH].
    wo: [HEADS * HEAD, WIDTH], the output projection's transpose. ``even`` is cleared.
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    item = gl.program_id(0) // HEADS
    if item >= gl.load(count_ptr):
        wait_predecessor()
        return
    gl.static_assert(num_warps == 4)
    gl.static_assert(HEAD == TILE)
    OUT: gl.constexpr = SPLITS == 1
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [num_warps, 1], [1, 0])
    DTYPE: gl.constexpr = page_ptr.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE, WIDTH], DTYPE)
    record = item_ptr + item * ITEM_NUMBERS
    first_row = gl.load(record + ITEM_FIRST_ROW)
    count = gl.load(record + ITEM_ROWS)
    stored = gl.load(record + ITEM_STORED)
    chunk = gl.load(record + ITEM_CHUNK)
    table = table_ptr + gl.load(record + ITEM_SESSION) * TABLE
    split = gl.load(record + ITEM_SPLIT)
    splits = gl.load(record + ITEM_SPLITS)
    last = stored + chunk  # the tile's own chunk among the keys
    first_key = (gl.maximum(last - LEFT, 0) if LEFT else 0) + split
    if first_key > last:
        wait_predecessor()
        return
    tiles = (last - first_key) // splits + 1
    fresh = normed_ptr + (first_row - chunk * CHUNK) * WIDTH
    keys = (first_key, splits, tiles, stored, last, count)
    sources = (table, page_ptr, fresh, wv_ptr + head * (HEAD * WIDTH), wo_ptr + head * (HEAD * WIDTH))
    query = gl.allocate_shared_memory(DTYPE, [TILE, WIDTH], SHARED)
    x = gl.allocate_shared_memory(DTYPE, [SLOTS, TILE, WIDTH], SHARED)
    for slot in gl.static_range(SLOTS):
        _copy_item(x.index(slot), slot, keys, sources, CHUNK, WIDTH, OUT, True, False, num_warps)
    wait_predecessor()

    local = gl.arange(0, TILE, layout=gl.SliceLayout(1, COPY))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, COPY))
    source = query_ptr + gl.expand_dims((first_row + local) * (HEADS * WIDTH) + head * WIDTH, 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(query, source, mask=gl.expand_dims(local < count, 1))
    for slot in gl.static_range(SLOTS):
        _copy_item(x.index(slot), slot, keys, sources, CHUNK, WIDTH, OUT, False, True, num_warps)
        async_copy.commit_group()
    if split == 0:
        _clear(even_ptr + first_row * WIDTH + head * (WIDTH // HEADS), count, WIDTH, HEADS, num_warps)

    sums = gl.zeros([TILE, WIDTH], gl.float32, layout=SUMS)
    highest = gl.full([TILE], HIDDEN, gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([TILE], gl.float32, layout=gl.SliceLayout(1, SCORES))
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
    slot = 0
    for number in range(0, tiles):
        key = first_key + number * splits
        async_copy.wait_group(SLOTS - 1)
        fence_async_shared()
        gl.thread_barrier()
        tile = x.index(slot)
        scores = warpgroup_mma(query, tile.permute((1, 0)), gl.zeros([TILE, TILE], gl.float32, layout=SCORES), use_acc=False)
        visible = column < gl.where(key == last, count, CHUNK)
        scores = gl.where(gl.expand_dims(visible, 0), scores * scale, HIDDEN)
        weights, fade, highest, total = soften(scores, highest, total)
        sums = sums * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, SUMS)), 1)
        left = gl.convert_layout(weights.to(DTYPE), gl.DotOperandLayout(0, SUMS, 2))
        sums = warpgroup_mma(left, tile, sums)
        gl.thread_barrier()
        _copy_item(tile, number + SLOTS, keys, sources, CHUNK, WIDTH, OUT, True, True, num_warps)
        async_copy.commit_group()
        slot = gl.where(slot == SLOTS - 1, 0, slot + 1)

    async_copy.wait_group(SLOTS - 1)
    fence_async_shared()
    gl.thread_barrier()
    inverse = fast_inverse(gl.convert_layout(total, gl.SliceLayout(1, SUMS)))
    left = gl.convert_layout((sums * gl.expand_dims(inverse, 1)).to(DTYPE), gl.DotOperandLayout(0, SCORES, 2))
    values = warpgroup_mma(left, x.index(slot).permute((1, 0)), gl.zeros([TILE, HEAD], gl.float32, layout=SCORES), use_acc=False)
    if SPLITS > 1:
        async_copy.wait_group(0)
        _store_part(parts_ptr, lse_ptr, split * rows + first_row, head, count, values, highest + gl.log2(total), HEADS, HEAD)
    else:
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        left = gl.convert_layout(values.to(DTYPE), gl.DotOperandLayout(0, SUMS, 2))
        wo = x.index(gl.where(slot == SLOTS - 1, 0, slot + 1))
        out = warpgroup_mma(left, wo, gl.zeros([TILE, WIDTH], gl.float32, layout=SUMS), use_acc=False)
        add_rows(odd_ptr + first_row * WIDTH, out, 0, count, WIDTH, num_warps)


@gluon.jit
def _store_part(parts_ptr, lse_ptr, first, head, count, values, lse, HEADS: gl.constexpr, HEAD: gl.constexpr):
    """The first ``count`` rows of one head's values and of the log-sum-exp of its scores."""
    LAYOUT: gl.constexpr = values.type.layout
    local = gl.arange(0, TILE, layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HEAD, layout=gl.SliceLayout(0, LAYOUT))
    line = (first + local) * HEADS + head
    part = parts_ptr + gl.expand_dims(line * HEAD, 1) + gl.expand_dims(column, 0)
    gl.store(part, values.to(parts_ptr.dtype.element_ty), mask=gl.expand_dims(local < count, 1))
    gl.store(lse_ptr + line, lse, mask=local < count)


@gluon.jit
def _clear(target, count, WIDTH: gl.constexpr, HEADS: gl.constexpr, num_warps: gl.constexpr):
    """Clear one head's share of the columns of ``count`` rows."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [num_warps, 1], [1, 0])
    row = gl.arange(0, TILE, layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, WIDTH // HEADS, layout=gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(row * WIDTH, 1) + gl.expand_dims(column, 0)
    gl.store(target + at, gl.zeros([TILE, WIDTH // HEADS], gl.float32, layout=LAYOUT), mask=gl.expand_dims(row < count, 1))


@gluon.jit(do_not_specialize=["rows"])
def join_few(
    parts_ptr, lse_ptr, splits_ptr, wo_ptr, live_ptr, odd_ptr, rows,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, HEAD: gl.constexpr, SPLITS: gl.constexpr, ROWS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Merge the values of all splits and add one head's part of the output projection to ``odd``. Grid: HEADS * rows / ROWS.

    splits: int32 [rows], how many of the SPLITS a row has. wo: [HEADS * HEAD, WIDTH].
    """
    start_successor()
    head = gl.program_id(0) % HEADS
    first = gl.program_id(0) // HEADS * ROWS
    live = gl.load(live_ptr)
    if first >= live:
        wait_predecessor()
        return
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [num_warps, 1], [1, 0])
    PRODUCT: gl.constexpr = product_layout(ROWS, num_warps)
    DTYPE: gl.constexpr = parts_ptr.dtype.element_ty
    wo = gl.allocate_shared_memory(DTYPE, [HEAD, WIDTH], gl.NVMMASharedLayout.get_default_for([HEAD, WIDTH], DTYPE))
    copy_rows(wo, wo_ptr + head * (HEAD * WIDTH), WIDTH, HEAD, WIDTH, num_warps)
    feature = gl.arange(0, HEAD, layout=gl.SliceLayout(0, LAYOUT))
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    splits = gl.load(splits_ptr + row, mask=row < live, other=0)
    wait_predecessor()

    parts = ()
    highest = gl.full([ROWS], HIDDEN, gl.float32, layout=gl.SliceLayout(1, LAYOUT))
    for split in gl.static_range(SPLITS):
        line = (split * rows + row) * HEADS + head
        lse = gl.load(lse_ptr + line, mask=split < splits, other=HIDDEN)
        at = parts_ptr + gl.expand_dims(line * HEAD, 1) + gl.expand_dims(feature, 0)
        parts = parts + ((lse, gl.load(at, mask=gl.expand_dims(split < splits, 1), other=0.0)),)
        highest = gl.maximum(highest, lse)
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, LAYOUT))
    values = gl.zeros([ROWS, HEAD], gl.float32, layout=LAYOUT)
    for split in gl.static_range(SPLITS):
        lse, part = parts[split]
        share = gl.exp2(lse - highest)
        total += share
        values += part.to(gl.float32) * gl.expand_dims(share, 1)
    values = (values * gl.expand_dims(fast_inverse(total), 1)).to(DTYPE)
    left = gl.convert_layout(values, gl.DotOperandLayout(0, PRODUCT, 2))
    async_copy.wait_group(0)
    gl.thread_barrier()
    out = mma_v2(left, wo.load(gl.DotOperandLayout(1, PRODUCT, 2)), gl.zeros([ROWS, WIDTH], gl.float32, layout=PRODUCT))
    add_rows(odd_ptr + first * WIDTH, out, first, live, WIDTH, num_warps)
