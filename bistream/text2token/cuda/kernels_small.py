"""Linear layers for few rows (up to 16), in Gluon: one warp per chunk of K, weights on their way before the input is ready.

No operand needs a change of layout: weights and activations lie in memory as the matrix instruction (m16n8k16) wants them
in registers. Within 32 columns of K, element ``sp * 16 + kh * 8 + q * 2 + k0`` is stored at ``q * 8 + sp * 4 + kh * 2 + k0``
(``packed_column``), so that lane q of a quad loads its 8 numbers at once; weights are cut into tiles of 8 features, see
``packing.pack_tiles``. The activations of a step with few rows (bfloat16 copy of the residual, attention, MLP) are stored so.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from bistream.gpu.arithmetic import add_in_order, finite, inverse_rms, multiply_add, packed_column, squares
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.cache import BLOCK_SIZE

BLOCK = gl.constexpr(BLOCK_SIZE)
MMA = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[8, 1, 1], instr_shape=[1, 16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MMA, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA, 2))
WEIGHTS = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 1, 32], [1, 8, 1], [2, 1, 0]))  # [k32, chunk, lane * 8]
ROWS = gl.constexpr(gl.BlockedLayout([1, 1, 1, 1, 8], [1, 1, 1, 8, 4], [1, 8, 1, 1, 1], [4, 3, 2, 1, 0]))  # [k32, chunk, half, row, 32]
CHUNKS_IN_THREAD = gl.constexpr(gl.BlockedLayout([8, 1, 1], [1, 4, 8], [1, 8, 1], [2, 1, 0]))  # [chunk, row, feature]
PAIRS_IN_THREAD = gl.constexpr(gl.BlockedLayout([8, 1, 1, 2], [1, 4, 8, 1], [1, 8, 1, 1], [3, 2, 1, 0]))  # [chunk, row, feature, pair]
OUTPUT = gl.constexpr(gl.BlockedLayout([1, 1], [4, 8], [8, 1], [1, 0]))  # [row, feature]
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
FLAT_4D = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0]))
FLAT_5D = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [4, 3, 2, 1, 0]))


@gluon.jit
def _weight_addresses(w_ptr, tile, first, K: gl.constexpr, K32: gl.constexpr, COUNT: gl.constexpr):
    """k32 first .. first + COUNT of every chunk (K32 of them) of a tile of 8 features: pointers [COUNT, 8, 256], and which exist."""
    chunks: gl.constexpr = (K + K32 * 32 - 1) // (K32 * 32)
    j = first + gl.arange(0, COUNT, layout=gl.SliceLayout(1, gl.SliceLayout(2, WEIGHTS)))[:, None, None]
    chunk = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, WEIGHTS)))[None, :, None]
    element = gl.arange(0, 256, layout=gl.SliceLayout(0, gl.SliceLayout(1, WEIGHTS)))[None, None, :]
    return w_ptr + tile * (K32 * chunks * 256) + ((j * chunks + chunk) * 256 + element), (chunk * K32 + j) * 32 < K


@gluon.jit
def _load_weights(w_ptr, tile, first, K: gl.constexpr, K32: gl.constexpr, COUNT: gl.constexpr):
    address, exists = _weight_addresses(w_ptr, tile, first, K, K32, COUNT)
    return gl.load(address, mask=exists, other=0.0)


@gluon.jit
def _right(w, COUNT: gl.constexpr):
    """Loaded weights as the right operand [8 chunks, COUNT * 32, 8 features]."""
    w = w.reshape((COUNT, 8, 8, 4, 2, 2, 2)).permute((1, 0, 4, 5, 3, 6, 2)).reshape((8, COUNT * 32, 8))
    return gl.convert_layout(w, RIGHT, assert_trivial=True)


@gluon.jit
def _load_rows(x_ptr, base, rows, first, K: gl.constexpr, STRIDE: gl.constexpr, COUNT: gl.constexpr, HALVES: gl.constexpr):
    """k32 first .. first + COUNT of every chunk (chunk c starts at column c * STRIDE) of the 8 * HALVES rows from ``base``.

    Behind the last row, that row again.
    """
    j = gl.arange(0, COUNT, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, ROWS)))))
    chunk = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, ROWS)))))
    half = gl.arange(0, HALVES, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, gl.SliceLayout(4, ROWS)))))
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(4, ROWS)))))
    element = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, ROWS)))))
    column = chunk[None, :, None, None, None] * STRIDE + (first + j[:, None, None, None, None]) * 32
    number = gl.minimum(base + half[None, None, :, None, None] * 8 + row[None, None, None, :, None], rows - 1)
    return gl.load(x_ptr + (number * K + column + element[None, None, None, None, :]), mask=column < K, other=0.0)


@gluon.jit
def _left(x, COUNT: gl.constexpr, HALVES: gl.constexpr):
    """Loaded rows as the left operand [8 chunks, 16 rows, COUNT * 32]; with one half, rows 8 to 15 repeat rows 0 to 7."""
    x = x.reshape((COUNT, 8, HALVES, 8, 4, 2, 2, 2)).permute((1, 2, 3, 0, 5, 6, 4, 7)).reshape((8, HALVES * 8, COUNT * 32))
    if HALVES == 1:
        x = gl.join(x, x).permute((0, 3, 1, 2)).reshape((8, 16, COUNT * 32))
    return gl.convert_layout(x, LEFT, assert_trivial=True)


@gluon.jit
def _add_chunks(bits):
    """[..., 2, 2, 2] (chunk number in bits) -> [...], added in the order 0, 1, ... 7."""
    even, odd = gl.split(bits)
    c04, c26 = gl.split(even)
    c15, c37 = gl.split(odd)
    c0, c4 = gl.split(c04)
    c2, c6 = gl.split(c26)
    c1, c5 = gl.split(c15)
    c3, c7 = gl.split(c37)
    total = add_in_order(add_in_order(add_in_order(c0, c1), c2), c3)
    return add_in_order(add_in_order(add_in_order(add_in_order(total, c4), c5), c6), c7)


@gluon.jit
def _sum_eight(chunks):
    """[8, 16, 8] -> [16, 8]."""
    chunks = gl.convert_layout(chunks, CHUNKS_IN_THREAD)
    total = _add_chunks(chunks.permute((1, 2, 0)).reshape((16, 8, 2, 2, 2)))
    return gl.convert_layout(total, OUTPUT, assert_trivial=True)


@gluon.jit
def _sum_eight_pairs(first, second):
    """Two of [8, 16, 8] -> two of [16, 8]."""
    chunks = gl.convert_layout(gl.join(first, second), PAIRS_IN_THREAD)
    total = _add_chunks(chunks.permute((1, 2, 3, 0)).reshape((16, 8, 2, 2, 2, 2)))
    first, second = gl.split(total)
    return gl.convert_layout(first, OUTPUT, assert_trivial=True), gl.convert_layout(second, OUTPUT, assert_trivial=True)


@gluon.jit(do_not_specialize=["rows"])
def qkv_small(
    x_ptr, squares_ptr, w_ptr, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position, table_ptr, table_stride, q_ptr, cache_ptr, rows,
    K: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, EPS: gl.constexpr,
    HALVES: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    """RMSNorm, query/key/value projection, bias, rotation; keys and values go to the cache. Grid: (4 per head, rows / 16).

    A pair of tiles holds features f .. f + 8 and f + 32 .. f + 40 of a head, which the rotation mixes.
    FIRST: the first layer; the rows' slots and positions are written by the predecessor.
    """
    if not FIRST:
        start_successor()
    tile = gl.program_id(0)
    w_first = _load_weights(w_ptr, tile * 2, 0, K, 4, 4)
    w_second = _load_weights(w_ptr, tile * 2 + 1, 0, K, 4, 4)
    head = tile // 4
    half = (tile % 4) * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OUTPUT))[None, :]
    bias_first = gl.load(bias_ptr + head * 64 + half)
    bias_second = gl.load(bias_ptr + head * 64 + half + 32)
    base = gl.program_id(1) * 16
    number = base + gl.arange(0, 16, layout=gl.SliceLayout(1, OUTPUT))[:, None]
    row = gl.minimum(number, rows - 1)
    if FIRST:
        wait_predecessor()
        start_successor()
    position = gl.load(row_position + row)
    live = (number < rows) & (position >= 0)
    at = gl.maximum(position, 0)
    block = gl.load(table_ptr + gl.load(row_slot + row) * table_stride + at // BLOCK).to(gl.int64)
    cos = gl.load(cos_ptr + at * 32 + half)
    sin = gl.load(sin_ptr + at * 32 + half)
    if not FIRST:
        wait_predecessor()
    x = _load_rows(x_ptr, base, rows, 0, K, 128, 4, HALVES)
    sum_of_squares = gl.load(squares_ptr + row)
    left = _left(x, 4, HALVES)
    first = mma_v2(left, _right(w_first, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    second = mma_v2(left, _right(w_second, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    first, second = _sum_eight_pairs(first, second)
    scale = inverse_rms(sum_of_squares, K, EPS)
    first = multiply_add(first, scale, bias_first)
    second = multiply_add(second, scale, bias_second)
    if head < HEADS + KV_HEADS:
        turned = gl.fma(first, cos, -(second * sin))
        second = gl.fma(second, cos, first * sin)
        first = turned
    packed = packed_column(half)
    if head < HEADS:
        target = q_ptr + row * (HEADS * 64) + head * 64 + packed
        gl.store(target, first.to(gl.bfloat16), mask=live)
        gl.store(target + 32, second.to(gl.bfloat16), mask=live)
    else:
        first, second = finite(first), finite(second)
        place = at % BLOCK
        if head < HEADS + KV_HEADS:
            target = cache_ptr + (block * KV_HEADS + head - HEADS) * (128 * BLOCK) + (place // 8) * 512 + (place % 8) * 32 + packed
            gl.store(target, first.to(gl.bfloat16), mask=live)
            gl.store(target + 256, second.to(gl.bfloat16), mask=live)
        else:
            target = cache_ptr + (block * KV_HEADS + head - HEADS - KV_HEADS) * (128 * BLOCK) + 64 * BLOCK
            target += (half // 8) * 512 + (place // 32) * 256 + (half % 8) * 32 + packed_column(place % 32)
            gl.store(target, first.to(gl.bfloat16), mask=live)
            gl.store(target + 4 * 512, second.to(gl.bfloat16), mask=live)


@gluon.jit
def _load_residual(tile, base, rows, x_ptr, HIDDEN: gl.constexpr):
    """x [16 rows, 8 features] of the residual stream."""
    row = gl.minimum(base + gl.arange(0, 16, layout=gl.SliceLayout(1, OUTPUT)), rows - 1)
    feature = tile * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OUTPUT))
    return gl.load(x_ptr + row[:, None] * HIDDEN + feature[None, :])


@gluon.jit
def _store_residual(x, tile, base, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN: gl.constexpr, PACKED: gl.constexpr):
    """The residual stream, its packed bfloat16 copy and the sum of squares of the next norm."""
    row = base + gl.arange(0, 16, layout=gl.SliceLayout(1, OUTPUT))
    is_row = (row < rows)[:, None]
    feature = tile * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OUTPUT))[None, :]
    start = row[:, None] * HIDDEN
    gl.store(x_ptr + start + feature, x, mask=is_row)
    gl.store(xb_ptr + start + (packed_column(feature) if PACKED else feature), x.to(gl.bfloat16), mask=is_row)
    gl.atomic_add(squares_ptr + row, gl.sum(squares(x), axis=1), mask=row < rows, sem="relaxed")


@gluon.jit(do_not_specialize=["rows"])
def output_small(
    attended_ptr, w_ptr, x_ptr, xb_ptr, squares_ptr, rows,
    K: gl.constexpr, HALVES: gl.constexpr, TILES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Output projection and residual. Grid: (K / 8 / TILES, rows / 16), TILES 1 or 2."""
    start_successor()
    tile = gl.program_id(0) * TILES
    base = gl.program_id(1) * 16
    w_0 = _load_weights(w_ptr, tile, 0, K, 4, 4)
    if TILES == 2:
        w_1 = _load_weights(w_ptr, tile + 1, 0, K, 4, 4)
    wait_predecessor()
    left = _load_rows(attended_ptr, base, rows, 0, K, 128, 4, HALVES)
    x_0 = _load_residual(tile, base, rows, x_ptr, K)
    zero = gl.zeros([8, 16, 8], gl.float32, MMA)
    if TILES == 2:
        x_1 = _load_residual(tile + 1, base, rows, x_ptr, K)
        left = _left(left, 4, HALVES)
        total_0, total_1 = _sum_eight_pairs(mma_v2(left, _right(w_0, 4), zero), mma_v2(left, _right(w_1, 4), zero))
        _store_residual(x_0 + total_0, tile, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)
        _store_residual(x_1 + total_1, tile + 1, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)
    else:
        total_0 = _sum_eight(mma_v2(_left(left, 4, HALVES), _right(w_0, 4), zero))
        _store_residual(x_0 + total_0, tile, base, rows, x_ptr, xb_ptr, squares_ptr, K, PACKED)


@gluon.jit(do_not_specialize=["rows"])
def down_small(hidden_ptr, w_ptr, x_ptr, xb_ptr, squares_ptr, rows, HIDDEN: gl.constexpr, K: gl.constexpr, HALVES: gl.constexpr):
    """Down projection and residual: eight chunks of 640 columns (the last one shorter). Grid: HIDDEN / 8."""
    start_successor()
    tile = gl.program_id(0)
    w_0 = _load_weights(w_ptr, tile, 0, K, 20, 8)
    w_1 = _load_weights(w_ptr, tile, 8, K, 20, 8)
    w_2 = _load_weights(w_ptr, tile, 16, K, 20, 4)
    wait_predecessor()
    x_0 = _load_rows(hidden_ptr, 0, rows, 0, K, 640, 8, HALVES)
    x_1 = _load_rows(hidden_ptr, 0, rows, 8, K, 640, 8, HALVES)
    x_2 = _load_rows(hidden_ptr, 0, rows, 16, K, 640, 4, HALVES)
    x = _load_residual(tile, 0, rows, x_ptr, HIDDEN)
    total = mma_v2(_left(x_0, 8, HALVES), _right(w_0, 8), gl.zeros([8, 16, 8], gl.float32, MMA))
    total = mma_v2(_left(x_1, 8, HALVES), _right(w_1, 8), total)
    total = mma_v2(_left(x_2, 4, HALVES), _right(w_2, 4), total)
    _store_residual(x + _sum_eight(total), tile, 0, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN, True)


@gluon.jit
def _stage(staged, w_ptr, first, last, K: gl.constexpr, TILES: gl.constexpr, IN_FLIGHT: gl.constexpr):
    """Tiles first .. first + TILES (K of 128 per chunk) on their way to shared memory; behind ``last`` the last one again.

    Beside the newest, IN_FLIGHT tiles of 14 kB are under way at a time: more would delay the loads of the kernels that still
    run on the same multiprocessor.
    """
    for t in gl.static_range(TILES):
        address, exists = _weight_addresses(w_ptr, gl.minimum(first + t, last), 0, K, 4, 4)
        async_copy.async_copy_global_to_shared(staged.index(t), address, mask=exists)
        async_copy.commit_group()
        async_copy.wait_group(IN_FLIGHT)


@gluon.jit
def _product(staged, t: gl.constexpr, left, TILES: gl.constexpr, HALVES: gl.constexpr):
    """[8 chunks, 8 * HALVES rows, 8 features] of a staged tile; behind TILES, of any tile."""
    if t < TILES:
        w = staged.index(t).load(WEIGHTS)  # every thread reads what it copied itself
        total = mma_v2(left, _right(w, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    else:
        total = gl.zeros([8, 16, 8], gl.float32, MMA)
    if HALVES == 1:
        total, _ = gl.split(total.reshape((8, 2, 8, 8)).permute((0, 2, 3, 1)))
    return total


@gluon.jit
def _eight_products(staged, first: gl.constexpr, left, TILES: gl.constexpr, HALVES: gl.constexpr):
    """[8 chunks, rows, 8 features, 2, 2, 2 (tile: lowest bit first)]."""
    low = gl.join(
        gl.join(_product(staged, first, left, TILES, HALVES), _product(staged, first + 1, left, TILES, HALVES)),
        gl.join(_product(staged, first + 2, left, TILES, HALVES), _product(staged, first + 3, left, TILES, HALVES)),
    )
    high = gl.join(
        gl.join(_product(staged, first + 4, left, TILES, HALVES), _product(staged, first + 5, left, TILES, HALVES)),
        gl.join(_product(staged, first + 6, left, TILES, HALVES), _product(staged, first + 7, left, TILES, HALVES)),
    )
    return gl.join(low, high)


@gluon.jit(do_not_specialize=["rows"])
def gate_up_small(
    xb_ptr, squares_ptr, w_ptr, hidden_ptr, rows,
    K: gl.constexpr, INTERMEDIATE: gl.constexpr, PAIRS: gl.constexpr, EPS: gl.constexpr, HALVES: gl.constexpr,
    MANY: gl.constexpr, PACKED: gl.constexpr, IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """RMSNorm, gate and up projection, silu(gate) * up. Tiles of gate and up alternate. Grid: cdiv(INTERMEDIATE / 8, PAIRS <= 8).

    MANY: more than 16 rows, 16 at a time. PACKED: the result is for ``down_small``.
    """
    start_successor()
    ROWS_OUT: gl.constexpr = 8 * HALVES
    layout: gl.constexpr = gl.BlockedLayout([1, 2, 8, 1, 1], [1, 1, 1, 4, 8], [4, 1, 1, 2, 1], [4, 3, 2, 1, 0])
    out: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, layout))
    first = gl.program_id(0) * PAIRS
    staged = gl.allocate_shared_memory(gl.bfloat16, [2 * PAIRS, 4, 8, 256], FLAT)
    _stage(staged, w_ptr, first * 2, INTERMEDIATE // 4 - 1, K, 2 * PAIRS, IN_FLIGHT)
    if MANY:
        exchange = gl.allocate_shared_memory(gl.float32, [8, 2, 8, ROWS_OUT, 8], FLAT_5D)
    else:
        exchange = staged._reinterpret(gl.float32, [8, 2, 8, ROWS_OUT, 8], FLAT_5D)
    row_0 = gl.arange(0, ROWS_OUT, layout=gl.SliceLayout(0, gl.SliceLayout(2, out)))[None, :, None]
    pair = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, out)))[:, None, None]
    feature = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, None, :]
    column = (first + pair) * 8 + feature
    inside = (pair < PAIRS) & (column < INTERMEDIATE)
    target = hidden_ptr + (packed_column(column) if PACKED else column)
    wait_predecessor()
    x = _load_rows(xb_ptr, 0, rows, 0, K, 128, 4, HALVES)
    passes = (rows + 15) // 16 if MANY else 1
    for number in range(0, passes):
        base = number * 16
        row = gl.minimum(base + row_0, rows - 1)
        scale = inverse_rms(gl.load(squares_ptr + row), K, EPS)
        left = _left(x, 4, HALVES)
        if MANY:
            x = _load_rows(xb_ptr, base + 16, rows, 0, K, 128, 4, HALVES)
        async_copy.wait_group(0)
        products = gl.join(_eight_products(staged, 0, left, 2 * PAIRS, HALVES), _eight_products(staged, 8, left, 2 * PAIRS, HALVES))
        gl.thread_barrier()
        exchange.store(products.permute((6, 5, 4, 3, 0, 1, 2)).reshape((8, 2, 8, ROWS_OUT, 8)))
        gl.thread_barrier()
        total = _add_chunks(exchange.load(layout).permute((0, 3, 4, 1, 2)).reshape((8, ROWS_OUT, 8, 2, 2, 2, 2)))
        gate, up = gl.split(total)
        gate = gl.convert_layout(gate, out, assert_trivial=True) * scale
        up = gl.convert_layout(up, out, assert_trivial=True)
        gated = gate / (1.0 + gl.exp(-gate)) * (up * scale)
        gl.store(target + row * INTERMEDIATE, gated.to(gl.bfloat16), mask=inside & (base + row_0 < rows))


@gluon.jit(do_not_specialize=["rows"])
def head_small(
    xb_ptr, squares_ptr, w_ptr, bias_ptr, logits_ptr, rows,
    K: gl.constexpr, VOCAB: gl.constexpr, VOCAB_STRIDE: gl.constexpr, TILES: gl.constexpr, EPS: gl.constexpr, HALVES: gl.constexpr,
    IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """Final RMSNorm and speech head: float32 scores. Grid: cdiv(VOCAB, 8 * TILES), TILES <= 8."""
    start_successor()
    ROWS_OUT: gl.constexpr = 8 * HALVES
    layout: gl.constexpr = gl.BlockedLayout([1, 8, 1, 1], [1, 1, 4, 8], [4, 1, 2, 1], [3, 2, 1, 0])
    out: gl.constexpr = gl.SliceLayout(1, layout)
    first = gl.program_id(0) * TILES
    staged = gl.allocate_shared_memory(gl.bfloat16, [TILES, 4, 8, 256], FLAT)
    _stage(staged, w_ptr, first, (VOCAB + 7) // 8 - 1, K, TILES, IN_FLIGHT)
    tile = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, out)))[:, None, None]
    number = gl.arange(0, ROWS_OUT, layout=gl.SliceLayout(0, gl.SliceLayout(2, out)))[None, :, None]
    feature = (first + tile) * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, None, :]
    inside = (tile < TILES) & (feature < VOCAB)
    bias = gl.load(bias_ptr + feature, mask=inside, other=0.0)
    row = gl.minimum(number, rows - 1)
    wait_predecessor()
    x = _load_rows(xb_ptr, 0, rows, 0, K, 128, 4, HALVES)
    scale = inverse_rms(gl.load(squares_ptr + row), K, EPS)
    left = _left(x, 4, HALVES)
    async_copy.wait_group(0)
    products = _eight_products(staged, 0, left, TILES, HALVES)
    gl.thread_barrier()
    exchange = staged._reinterpret(gl.float32, [8, 8, ROWS_OUT, 8], FLAT_4D)
    exchange.store(products.permute((5, 4, 3, 0, 1, 2)).reshape((8, 8, ROWS_OUT, 8)))
    gl.thread_barrier()
    chunks = exchange.load(layout)
    total = _add_chunks(chunks.permute((0, 2, 3, 1)).reshape((8, ROWS_OUT, 8, 2, 2, 2)))
    score = multiply_add(gl.convert_layout(total, out, assert_trivial=True), scale, bias)
    gl.store(logits_ptr + row * VOCAB_STRIDE + feature, score, mask=inside & (number < rows))
