# mypy: ignore-errors
"""Query/key/value and output projection for many rows (from 65), in Gluon; what ``kernels_mlp`` shares with them.

A program is one warp that brings tiles by bulk copies (``feed``) and one or two groups of four warps that multiply 64 rows each.
The groups never wait for one another, so one adds while the other multiplies. Weights are on their way to shared memory before
the wait for the predecessor. The sums are those of ``kernels_small``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from bistream.gpu.arithmetic import add_in_order, finite, inverse_rms, multiply_add, packed_column, squares
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.cache import BLOCK_SIZE

BLOCK = gl.constexpr(BLOCK_SIZE)
STEP = gl.constexpr(64)  # columns of K that a bulk copy brings: 128 bytes of every row
GROUP = gl.constexpr(64)  # rows of four warps


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
    """This program's share of the BYTES at ptr, weights of the next kernel, to the L2 cache, without waiting. For one warp."""
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
    """The copying warp: STEPS tiles of GROUPS * 64 rows and of the weights, which lie behind the wait only where there is no room.

    W_STAGES is STEPS, or X_STAGES: then a stage of weights is free when its stage of rows is. MORE: a second tile of weights, whose
    features follow the first one's. NEXT_BYTES of weights at next_ptr go to the L2 cache when the memory has less to do.
    LATE: the successor starts behind the wait.
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
    """The product of 128 columns, from zero, under way."""
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
def _sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES: gl.constexpr, K: gl.constexpr):
    """[64 rows, features]: chunks of 128 columns in order; a chunk is multiplied while the one before is added."""
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


@gluon.jit
def _words(x):
    """float32 [64, 16] as the matrix instruction leaves it -> bfloat16 in packed order, four in an int64: [64, 4]."""
    low, high = gl.split(x.reshape((GROUP, 2, 4, 2)))
    pair = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)
    first, second = gl.split(pair.permute((0, 2, 1)))
    return gl.inline_asm_elementwise("mov.b64 $0, {$1, $2};", "=l,r,r", [first, second], dtype=gl.int64, is_pure=True, pack=1)


@gluon.jit
def _halves(total):
    return gl.split(total.reshape((GROUP, 2, 16)).permute((0, 2, 1)))


@gluon.jit
def _qkv_group(
    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, tile, quarter, squares_ptr, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position,
    table_ptr, table_stride, q_ptr, cache_ptr, rows,
    X_STAGES: gl.constexpr, K: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """64 rows of a tile: 16 features of a head and the 16 that are 32 behind them and rotate with them."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    first, second = _halves(gl.zeros([GROUP, 32], gl.float32, layout))
    out: gl.constexpr = first.type.layout
    head = tile // 2
    part = tile % 2
    half = part * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, out))
    row = first_row + gl.arange(0, GROUP, layout=gl.SliceLayout(1, out))
    bias_first = gl.load(bias_ptr + head * 64 + half)[None, :]
    bias_second = gl.load(bias_ptr + head * 64 + 32 + half)[None, :]
    position = gl.load(row_position + row)
    live = (row < rows) & (position >= 0)
    at = gl.maximum(position, 0)
    block = gl.load(table_ptr + gl.load(row_slot + row) * table_stride + at // BLOCK, mask=live, other=0).to(gl.int64)
    place = at % BLOCK
    cos = gl.load(cos_ptr + at[:, None] * 32 + half[None, :])
    sin = gl.load(sin_ptr + at[:, None] * 32 + half[None, :])
    wait_predecessor()
    sum_of_squares = gl.load(squares_ptr + row)
    total = _sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES, K)
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    first, second = _halves(total)
    first = multiply_add(first, scale, bias_first)
    second = multiply_add(second, scale, bias_second)
    if head < HEADS + KV_HEADS:
        turned = gl.fma(first, cos, -(second * sin))
        second = gl.fma(second, cos, first * sin)
        first = turned
    if head >= HEADS:
        first, second = finite(first), finite(second)
    if head < HEADS + KV_HEADS:
        first_words = _words(first)
        second_words = _words(second)
        words: gl.constexpr = first_words.type.layout
        key = (block * KV_HEADS + head - HEADS) * (128 * BLOCK) + (place // 8) * 512 + (place % 8) * 32
        line = gl.where(head < HEADS, (row * HEADS + head).to(gl.int64) * 64, key) // 4
        line = gl.convert_layout(line, gl.SliceLayout(1, words), assert_trivial=True)[:, None]
        mask = gl.convert_layout(live, gl.SliceLayout(1, words), assert_trivial=True)[:, None]
        target = gl.where(head < HEADS, q_ptr.to(gl.int64), cache_ptr.to(gl.int64)).to(gl.pointer_type(gl.int64))
        target += line + part + gl.arange(0, 4, layout=gl.SliceLayout(0, words))[None, :] * 2
        gl.store(target, first_words, mask=mask)
        gl.store(target + gl.where(head < HEADS, 8, 64), second_words, mask=mask)
    else:
        value = cache_ptr + (block * KV_HEADS + head - HEADS - KV_HEADS)[:, None] * (128 * BLOCK) + 64 * BLOCK
        value += (half // 8 * 512 + half % 8 * 32)[None, :] + ((place // 32) * 256 + packed_column(place % 32))[:, None]
        eight = live[:, None] & (half % 16 // 8 == quarter % 2)[None, :]
        if quarter < 2:
            gl.store(value, first.to(gl.bfloat16), mask=eight)
        else:
            gl.store(value + 4 * 512, second.to(gl.bfloat16), mask=eight)


@gluon.jit(do_not_specialize=["rows"])
def qkv_many(
    x_desc, w_desc, squares_ptr, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position, table_ptr, table_stride, q_ptr, cache_ptr, rows,
    X_STAGES: gl.constexpr, K: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, EPS: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    """RMSNorm, query/key/value projection, bias, rotation; keys and values go to the cache.

    Grid: (2 * HEADS + 2 * KV_HEADS + 8 * KV_HEADS, rows / 64). A tile of values is computed by four programs that store 8 of its
    features each: every number of it goes to a line of its own, which one multiprocessor alone does slowly.
    FIRST: the first layer; the rows' slots and positions are written by the predecessor. Attention starts late: what it reads
    before its turn would delay the predecessor.
    """
    if FIRST:
        wait_predecessor()
        start_successor()
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [X_STAGES, GROUP, STEP], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [K // STEP, 32, STEP], w_desc.layout)
    x_ready = barriers(X_STAGES, 1)
    w_ready = barriers(K // STEP, 1)
    empty = barriers(X_STAGES, 1)
    values: gl.constexpr = 2 * (HEADS + KV_HEADS)  # the first tile of values
    tile = gl.program_id(0)
    quarter = (tile - values) % 4
    tile = gl.where(tile < values, tile, values + (tile - values) // 4)
    first_row = gl.program_id(1) * GROUP
    gl.warp_specialize(
        [
            (_qkv_group, (
                x_tiles, w_tiles, x_ready, w_ready, empty, first_row, tile, quarter, squares_ptr, bias_ptr, cos_ptr, sin_ptr,
                row_slot, row_position, table_ptr, table_stride, q_ptr, cache_ptr, rows, X_STAGES, K, HEADS, KV_HEADS, EPS,
            )),
            (feed, (
                x_desc, w_desc, w_desc, x_tiles, w_tiles, w_tiles, x_ready, w_ready, empty, first_row, tile * 32, 0, bias_ptr,
                K // STEP, X_STAGES, K // STEP, 1, False, 0, not FIRST,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


@gluon.jit
def _output_group(
    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES: gl.constexpr, K: gl.constexpr
):
    FEATURES: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FEATURES, 16])
    row = first_row + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    is_row = (row < rows)[:, None]
    at = row[:, None] * K + start + gl.arange(0, FEATURES, layout=gl.SliceLayout(0, layout))[None, :]
    wait_predecessor()
    x = gl.load(x_ptr + at, mask=is_row, other=0.0)
    x += _sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES, K)
    gl.store(x_ptr + at, x, mask=is_row)
    gl.store(xb_ptr + at, x.to(gl.bfloat16), mask=is_row)
    gl.atomic_add(squares_ptr + row, gl.sum(squares(x), axis=1), mask=row < rows, sem="relaxed")


@gluon.jit(do_not_specialize=["rows"])
def output_many(attended_desc, w_desc, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES: gl.constexpr, K: gl.constexpr):
    """Output projection and residual. Grid: (K / FEATURES, rows / 64)."""
    start_successor()
    FEATURES: gl.constexpr = w_desc.block_type.shape[0]
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [X_STAGES, GROUP, STEP], attended_desc.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [K // STEP, FEATURES, STEP], w_desc.layout)
    x_ready = barriers(X_STAGES, 1)
    w_ready = barriers(K // STEP, 1)
    empty = barriers(X_STAGES, 1)
    start = gl.program_id(0) * FEATURES
    first_row = gl.program_id(1) * GROUP
    gl.warp_specialize(
        [
            (_output_group, (x_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, x_ptr, xb_ptr, squares_ptr, rows, X_STAGES, K)),
            (feed, (
                attended_desc, w_desc, w_desc, x_tiles, w_tiles, w_tiles, x_ready, w_ready, empty, first_row, start, 0, x_ptr,
                K // STEP, X_STAGES, K // STEP, 1, False, 0, False,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip
