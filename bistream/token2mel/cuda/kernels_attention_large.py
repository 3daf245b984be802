# mypy: ignore-errors
"""``attend_pages`` for many rows: the same sums, with the products and the softmax of neighbouring key tiles overlapped.

While the tensor cores multiply the weights of one key tile by its inputs, the other units turn the scores of the next tile
into weights. Written in Gluon, the layer of Triton in which waits for tensor cores and copies are explicit. Hopper only.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait

_HIDDEN = gl.constexpr(-1.0e30)  # score of a key that is not visible; finite, so that a row without keys so far stays finite


@gluon.jit
def _key_addresses(
    start, last_key, stored, table, pages, fresh, WIDTH: gl.constexpr, CHUNK: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """Where the inputs of keys start ... start + KEYS - 1 lie; behind the last key it is repeated."""
    key = gl.minimum(start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT)), last_key)
    is_stored = key < stored
    page = gl.load(table + key // CHUNK, mask=is_stored, other=0).to(gl.int64)
    return gl.where(is_stored, pages + (page * CHUNK + key % CHUNK) * WIDTH, fresh + (key - stored) * WIDTH)


@gluon.jit
def _copy_keys(slot, source, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Start copying into shared memory."""
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    async_copy.async_copy_global_to_shared(slot, gl.expand_dims(source, 1) + gl.expand_dims(column, 0))
    async_copy.commit_group()


@gluon.jit
def _to_weights(scores, start, lower, upper, scale, highest, LEFT: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores of one key tile -> weights, the new maximum, and the factor by which what was summed so far fades."""
    key = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    visible = gl.expand_dims(key, 0) < gl.expand_dims(upper, 1)
    if LEFT:
        visible = visible & (gl.expand_dims(key, 0) >= gl.expand_dims(lower, 1))
    scores = gl.where(visible, scores, _HIDDEN)
    raised = gl.maximum(highest, gl.max(scores, axis=1) * scale)
    weights = gl.exp2(scores * scale - gl.expand_dims(raised, 1))
    return weights, raised, gl.exp2(highest - raised)


@gluon.jit
def attend_pages_large(
    query_ptr, xn_ptr, page_ptr, page_half_stride, tile_ptr, session_ptr, table_ptr, out_ptr, scale,
    rows, WIDTH: gl.constexpr, HEADS: gl.constexpr, CHUNK: gl.constexpr, TABLE: gl.constexpr, LEFT: gl.constexpr,
    FRAMES: gl.constexpr, KEYS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Arguments as ``kernels_attention.attend_pages`` with one split. Grid: (tiles, 2 halves). FRAMES * HEADS = 16 * warps."""
    SIZE: gl.constexpr = FRAMES * HEADS
    gl.static_assert(SIZE == 16 * num_warps)
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, WIDTH, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    DTYPE: gl.constexpr = xn_ptr.dtype.element_ty
    SHARED_Q: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SIZE, WIDTH], DTYPE)
    SHARED_X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, WIDTH], DTYPE)

    tile = gl.program_id(0)
    half = gl.program_id(1)
    if tile >= gl.load(tile_ptr):
        return
    session = gl.load(tile_ptr + 1 + 2 * tile)
    first_frame = gl.load(tile_ptr + 2 + 2 * tile)
    first_row = gl.load(session_ptr + 3 * session) + half * rows
    frames = gl.load(session_ptr + 3 * session + 1)
    chunks = gl.load(session_ptr + 3 * session + 2)
    stored = chunks * CHUNK
    table = table_ptr + session * TABLE
    pages = page_ptr + half * page_half_stride
    fresh = xn_ptr + first_row * WIDTH

    query = gl.allocate_shared_memory(DTYPE, [SIZE, WIDTH], SHARED_Q)
    number = gl.arange(0, SIZE, layout=gl.SliceLayout(1, COPY))
    number = gl.minimum(number, (frames - first_frame) * HEADS - 1)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, COPY))
    queries = query_ptr + (first_row + first_frame) * (HEADS * WIDTH)
    async_copy.async_copy_global_to_shared(query, queries + gl.expand_dims(number * WIDTH, 1) + gl.expand_dims(column, 0))

    frame = gl.minimum(first_frame + gl.arange(0, SIZE, layout=ROW) // HEADS, frames - 1)
    chunk = frame // CHUNK
    upper = stored + gl.minimum((chunk + 1) * CHUNK, frames)
    lower = gl.maximum((chunks + chunk - LEFT) * CHUNK, 0) if LEFT else upper
    end = stored + gl.minimum((gl.minimum(first_frame + FRAMES, frames) - 1) // CHUNK * CHUNK + CHUNK, frames)
    start = gl.maximum((chunks + first_frame // CHUNK - LEFT) * CHUNK, 0) if LEFT else 0
    count = gl.cdiv(end - start, KEYS)

    x = gl.allocate_shared_memory(DTYPE, [3, KEYS, WIDTH], SHARED_X)
    source = _key_addresses(start, end - 1, stored, table, pages, fresh, WIDTH, CHUNK, KEYS, COPY)
    _copy_keys(x.index(0), source, WIDTH, COPY)
    source = _key_addresses(start + KEYS, end - 1, stored, table, pages, fresh, WIDTH, CHUNK, KEYS, COPY)
    _copy_keys(x.index(1), source, WIDTH, COPY)
    source = _key_addresses(start + 2 * KEYS, end - 1, stored, table, pages, fresh, WIDTH, CHUNK, KEYS, COPY)
    nothing = gl.zeros([SIZE, KEYS], gl.float32, layout=SCORES)
    sums = gl.zeros([SIZE, WIDTH], gl.float32, layout=SUMS)
    highest = gl.full([SIZE], _HIDDEN, gl.float32, layout=ROW)
    async_copy.wait_group(1)
    fence_async_shared()
    gl.thread_barrier()
    scores = warpgroup_mma(query, x.index(0).permute((1, 0)), nothing, use_acc=False)
    weights, highest, fade = _to_weights(scores, start, lower, upper, scale, highest, LEFT, SCORES)
    total = gl.sum(weights, axis=1)
    summing = warpgroup_mma_init(sums)
    for index in range(1, count):
        start += KEYS
        sums = warpgroup_mma_wait(0, deps=(summing,))  # of tile index - 2, whose slot is free behind the barrier
        # Only now: until the wait, the tensor cores read the registers of the weights before.
        packed = gl.convert_layout(weights.to(DTYPE), WEIGHTS)
        sums = sums * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, SUMS)), 1)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        coming = warpgroup_mma(query, x.index(index % 3).permute((1, 0)), nothing, use_acc=False, is_async=True)
        summing = warpgroup_mma(packed, x.index((index - 1) % 3), sums, is_async=True)
        _copy_keys(x.index((index + 1) % 3), source, WIDTH, COPY)
        source = _key_addresses(start + 2 * KEYS, end - 1, stored, table, pages, fresh, WIDTH, CHUNK, KEYS, COPY)
        scores = warpgroup_mma_wait(1, deps=(coming,))
        weights, highest, fade = _to_weights(scores, start, lower, upper, scale, highest, LEFT, SCORES)
        total = total * fade + gl.sum(weights, axis=1)
    sums = warpgroup_mma_wait(0, deps=(summing,))
    sums = sums * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, SUMS)), 1)
    packed = gl.convert_layout(weights.to(DTYPE), WEIGHTS)
    sums = warpgroup_mma(packed, x.index((count - 1) % 3), sums)
    sums = sums / gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, SUMS)), 1)
    query.store(sums.to(DTYPE))  # through shared memory, for stores of whole lines
    row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, COPY))
    out = out_ptr + (first_row + first_frame) * (HEADS * WIDTH) + gl.expand_dims(row * WIDTH, 1)
    exists = first_frame + row // HEADS < frames
    gl.store(out + gl.expand_dims(column, 0), query.load(COPY), mask=gl.expand_dims(exists, 1))
    async_copy.wait_group(0)
