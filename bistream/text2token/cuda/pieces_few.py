# mypy: ignore-errors
"""Parts of the linear layers for few rows, in Gluon: one warp per chunk of K, weights loaded before the input is ready.

No operand needs a layout conversion: weights and activations are stored in the register order of the matrix instruction
(m16n8k16). Within 32 columns of K, element ``sp * 16 + kh * 8 + q * 2 + k0`` is stored at ``q * 8 + sp * 4 + kh * 2 + k0``
(``arithmetic.packed_column``), so that lane q of a quad loads its 8 numbers at once; weights are cut into tiles of 8 features, see
``weights.pack_tiles``. Activations read by these kernels (bfloat16 copy of the residual, attention, MLP) have this order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from bistream.gpu.arithmetic import add_in_order, packed_column, squares

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
def weight_addresses(w_ptr, tile, first, K: gl.constexpr, K32: gl.constexpr, COUNT: gl.constexpr):
    """Groups of 32 columns first .. first + COUNT, of K32 per chunk, in a tile of 8 features: pointers [COUNT, 8, 256] and their mask."""
    chunks: gl.constexpr = (K + K32 * 32 - 1) // (K32 * 32)
    j = first + gl.arange(0, COUNT, layout=gl.SliceLayout(1, gl.SliceLayout(2, WEIGHTS)))[:, None, None]
    chunk = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, WEIGHTS)))[None, :, None]
    element = gl.arange(0, 256, layout=gl.SliceLayout(0, gl.SliceLayout(1, WEIGHTS)))[None, None, :]
    return w_ptr + tile * (K32 * chunks * 256) + ((j * chunks + chunk) * 256 + element), (chunk * K32 + j) * 32 < K


@gluon.jit
def load_weights(w_ptr, tile, first, K: gl.constexpr, K32: gl.constexpr, COUNT: gl.constexpr):
    address, exists = weight_addresses(w_ptr, tile, first, K, K32, COUNT)
    return gl.load(address, mask=exists, other=0.0)


@gluon.jit
def right_operand(w, COUNT: gl.constexpr):
    """Loaded weights as the right operand [8 chunks, COUNT * 32, 8 features]."""
    w = w.reshape((COUNT, 8, 8, 4, 2, 2, 2)).permute((1, 0, 4, 5, 3, 6, 2)).reshape((8, COUNT * 32, 8))
    return gl.convert_layout(w, RIGHT, assert_trivial=True)


@gluon.jit
def load_rows(x_ptr, base, rows, first, K: gl.constexpr, STRIDE: gl.constexpr, COUNT: gl.constexpr, HALVES: gl.constexpr):
    """Groups of 32 columns first .. first + COUNT of every chunk (chunk c starts at column c * STRIDE), 8 * HALVES rows from ``base``.

    Rows after the last repeat it.
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
def left_operand(x, COUNT: gl.constexpr, HALVES: gl.constexpr):
    """Loaded rows as the left operand [8 chunks, 16 rows, COUNT * 32]; with one half, rows 8 to 15 repeat rows 0 to 7."""
    x = x.reshape((COUNT, 8, HALVES, 8, 4, 2, 2, 2)).permute((1, 2, 3, 0, 5, 6, 4, 7)).reshape((8, HALVES * 8, COUNT * 32))
    if HALVES == 1:
        x = gl.join(x, x).permute((0, 3, 1, 2)).reshape((8, 16, COUNT * 32))
    return gl.convert_layout(x, LEFT, assert_trivial=True)


@gluon.jit
def add_chunks(bits):
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
def sum_eight(chunks):
    """[8, 16, 8] -> [16, 8]."""
    chunks = gl.convert_layout(chunks, CHUNKS_IN_THREAD)
    total = add_chunks(chunks.permute((1, 2, 0)).reshape((16, 8, 2, 2, 2)))
    return gl.convert_layout(total, OUTPUT, assert_trivial=True)


@gluon.jit
def sum_eight_pairs(first, second):
    """Two of [8, 16, 8] -> two of [16, 8]."""
    chunks = gl.convert_layout(gl.join(first, second), PAIRS_IN_THREAD)
    total = add_chunks(chunks.permute((1, 2, 3, 0)).reshape((16, 8, 2, 2, 2, 2)))
    first, second = gl.split(total)
    return gl.convert_layout(first, OUTPUT, assert_trivial=True), gl.convert_layout(second, OUTPUT, assert_trivial=True)


@gluon.jit
def load_residual(tile, base, rows, x_ptr, HIDDEN: gl.constexpr):
    """x [16 rows, 8 features] of the residual stream."""
    row = gl.minimum(base + gl.arange(0, 16, layout=gl.SliceLayout(1, OUTPUT)), rows - 1)
    feature = tile * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OUTPUT))
    return gl.load(x_ptr + row[:, None] * HIDDEN + feature[None, :])


@gluon.jit
def store_residual(x, tile, base, rows, x_ptr, xb_ptr, squares_ptr, HIDDEN: gl.constexpr, PACKED: gl.constexpr):
    """The residual stream, its packed bfloat16 copy and the sum of squares of the next norm."""
    row = base + gl.arange(0, 16, layout=gl.SliceLayout(1, OUTPUT))
    is_row = (row < rows)[:, None]
    feature = tile * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OUTPUT))[None, :]
    start = row[:, None] * HIDDEN
    gl.store(x_ptr + start + feature, x, mask=is_row)
    gl.store(xb_ptr + start + (packed_column(feature) if PACKED else feature), x.to(gl.bfloat16), mask=is_row)
    gl.atomic_add(squares_ptr + row, gl.sum(squares(x), axis=1), mask=row < rows, sem="relaxed")


@gluon.jit
def stage_weights(staged, w_ptr, first, last, K: gl.constexpr, TILES: gl.constexpr, IN_FLIGHT: gl.constexpr):
    """Copy tiles first .. first + TILES (chunks of 128 columns) to shared memory, asynchronously; tiles after ``last`` repeat it.

    At most IN_FLIGHT copies of 14 kB are in flight besides the newest: more would delay the loads of the kernels that are still
    running on the same multiprocessor.
    """
    for t in gl.static_range(TILES):
        address, exists = weight_addresses(w_ptr, gl.minimum(first + t, last), 0, K, 4, 4)
        async_copy.async_copy_global_to_shared(staged.index(t), address, mask=exists)
        async_copy.commit_group()
        async_copy.wait_group(IN_FLIGHT)


@gluon.jit
def _product(staged, t: gl.constexpr, left, TILES: gl.constexpr, HALVES: gl.constexpr):
    """[8 chunks, 8 * HALVES rows, 8 features] of a staged tile; zero from TILES on."""
    if t < TILES:
        w = staged.index(t).load(WEIGHTS)  # every thread reads the data that it copied itself
        total = mma_v2(left, right_operand(w, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    else:
        total = gl.zeros([8, 16, 8], gl.float32, MMA)
    if HALVES == 1:
        total, _ = gl.split(total.reshape((8, 2, 8, 8)).permute((0, 2, 3, 1)))
    return total


@gluon.jit
def eight_products(staged, first: gl.constexpr, left, TILES: gl.constexpr, HALVES: gl.constexpr):
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
