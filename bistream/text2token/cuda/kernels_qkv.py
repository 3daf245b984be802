# mypy: ignore-errors
"""Query/key/value projection, in Gluon: RMSNorm, projection, bias, rotation; keys and values go to the cache.

``qkv_small`` for few rows (``pieces_few``), ``qkv_many`` for many (``pieces_many``). Both add in the same order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from bistream.gpu.arithmetic import finite, inverse_rms, multiply_add, packed_column
from bistream.gpu.barriers import barriers
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.cuda.memory import BLOCK_SIZE
from bistream.text2token.cuda.pieces_few import MMA, OUTPUT, left_operand, load_rows, load_weights, right_operand, sum_eight_pairs
from bistream.text2token.cuda.pieces_many import GROUP, STEP, feed, sum_of_chunks

BLOCK = gl.constexpr(BLOCK_SIZE)  # positions per block of the cache


@gluon.jit(do_not_specialize=["rows"])
def qkv_small(
    x_ptr, squares_ptr, w_ptr, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position, table_ptr, table_stride, q_ptr, cache_ptr, rows,
    K: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, EPS: gl.constexpr,
    HALVES: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    """RMSNorm, query/key/value projection, bias, rotation; keys and values go to the cache. Grid: (4 per head, rows / 16).

    A pair of tiles holds features f .. f + 8 and f + 32 .. f + 40 of a head, which rotate together.
    FIRST: the first layer, whose predecessor writes the rows' slots and positions.
    """
    if not FIRST:
        start_successor()
    tile = gl.program_id(0)
    w_first = load_weights(w_ptr, tile * 2, 0, K, 4, 4)
    w_second = load_weights(w_ptr, tile * 2 + 1, 0, K, 4, 4)
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
    x = load_rows(x_ptr, base, rows, 0, K, 128, 4, HALVES)
    sum_of_squares = gl.load(squares_ptr + row)
    left = left_operand(x, 4, HALVES)
    first = mma_v2(left, right_operand(w_first, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    second = mma_v2(left, right_operand(w_second, 4), gl.zeros([8, 16, 8], gl.float32, MMA))
    first, second = sum_eight_pairs(first, second)
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
def _words(x):
    """float32 [64, 16] in the accumulator's layout -> bfloat16 in packed order, four per int64: [64, 4]."""
    low, high = gl.split(x.reshape((GROUP, 2, 4, 2)))
    pair = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)
    first, second = gl.split(pair.permute((0, 2, 1)))
    return gl.inline_asm_elementwise("mov.b64 $0, {$1, $2};", "=l,r,r", [first, second], dtype=gl.int64, is_pure=True, pack=1)


@gluon.jit
def feature_halves(total):
    return gl.split(total.reshape((GROUP, 2, 16)).permute((0, 2, 1)))


@gluon.jit
def _qkv_group(
    x_tiles, w_tiles, x_ready, w_ready, empty, first_row, tile, quarter, squares_ptr, bias_ptr, cos_ptr, sin_ptr, row_slot, row_position,
    table_ptr, table_stride, q_ptr, cache_ptr, rows,
    X_STAGES: gl.constexpr, K: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """64 rows of a tile: 16 features of a head and their rotation partners, at an offset of 32."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    first, second = feature_halves(gl.zeros([GROUP, 32], gl.float32, layout))
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
    total = sum_of_chunks(x_tiles, w_tiles, x_ready, w_ready, empty, X_STAGES, K)
    scale = inverse_rms(sum_of_squares, K, EPS)[:, None]
    first, second = feature_halves(total)
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

    Grid: (2 * HEADS + 2 * KV_HEADS + 8 * KV_HEADS, rows / 64). A tile of values is computed by four programs, each of which stores
    8 of its features: the stores are uncoalesced (one cache line per number), too slow for a single multiprocessor.
    FIRST: the first layer, whose predecessor writes the rows' slots and positions. The successor, attention, starts after the wait,
    because its early loads would delay the predecessor.
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
