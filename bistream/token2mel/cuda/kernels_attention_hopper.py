# mypy: ignore-errors
"""``kernels_attention_many.attend_pages`` for NVIDIA Hopper, in warp-specialised programs: two thirds of its time on an H200.

Chosen on compute capability 9.0 with the one minor version of Triton whose Gluon it is written for (``launches_many``); everywhere else,
and as its reference, there is the plain kernel.

A program occupies a multiprocessor: four producer warps copy queries and key tiles into a ring in shared memory, two consumer
groups of four warps compute 64 rows each. The groups alternate on the tensor cores: one turns scores into weights while the
other multiplies. All warps go on to the program's next tile without a common barrier. Written in Gluon, the layer of Triton
in which warps, waits and copies are explicit.

Barriers in shared memory: ``full`` and ``empty`` of each slot of the ring, the same of each group's queries, and ``turn``.
A phase bit tells successive uses of a slot apart; it flips whenever the ring wraps around.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from bistream.token2mel.cuda.pieces_attention import load_tile

_HIDDEN = gl.constexpr(-1.0e30)  # score of a key that is not visible; finite, so that a row without keys so far stays finite
_SLACK = gl.constexpr(8.0)  # the base of the weights rises only when a score exceeds it by more than this: weights are at most 2^8
_WARPS = gl.constexpr(4)  # of each group
_THREADS = gl.constexpr(128)
_ROWS = gl.constexpr(64)  # of one group: of one matrix instruction
_STAGES = gl.constexpr(4)  # key tiles in shared memory
_REGISTERS = gl.constexpr(216)  # of a consumer thread: 128 sums, 32 scores, 16 packed weights
_COPY_REGISTERS = gl.constexpr(48)
_WIDTH = gl.constexpr(256)  # for which the layouts and the instructions below are written
# Rescales a thread's 128 sums by their rows' factors (``fade``), unless all factors of the warp are 1, the usual case.
_FADE = gl.constexpr(
    "{ .reg .pred p; setp.ne.f32 p, $256, 0f3F800000; "
    + "".join(f"setp.ne.or.f32 p, ${256 + index}, 0f3F800000, p; " for index in (1, 2, 3))
    + "vote.sync.any.pred p, p, 0xffffffff; @!p bra KEPT; "
    + " ".join(f"mul.f32 ${index}, ${index}, ${256 + index};" for index in range(128))
    + " KEPT: }"
)
_FADE_OPERANDS = gl.constexpr(",".join(["=f"] * 128 + [str(index) for index in range(128)] + ["f"] * 128))


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers of ARRIVALS arrivals each."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(COUNT):
        mbarrier.init(bars.index(number), count=ARRIVALS)
    return bars


@gluon.jit
def _ring_barriers(SIZE: gl.constexpr, COPIES: gl.constexpr, READERS: gl.constexpr):
    """Barriers of a ring of SIZE slots. full: a slot's data has arrived (COPIES arrivals); empty: all READERS have released it."""
    full = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SIZE):
        mbarrier.init(full.index(slot), count=COPIES)
        mbarrier.init(empty.index(slot), count=READERS)
    return full, empty


@gluon.jit
def _key_range(first_frame, frames, chunks, CHUNK: gl.constexpr, LEFT: gl.constexpr, FRAMES: gl.constexpr):
    """First key that a row of the tile sees, and the one after the last."""
    last = gl.minimum(first_frame + FRAMES, frames) - 1
    end = chunks * CHUNK + gl.minimum(last // CHUNK * CHUNK + CHUNK, frames)
    start = gl.maximum((chunks + first_frame // CHUNK - LEFT) * CHUNK, 0) if LEFT else 0
    return start, end


@gluon.jit
def _copy_rows(slot, source, full, LAYOUT: gl.constexpr):
    """Start copying rows into shared memory; completion arrives at ``full``."""
    column = gl.expand_dims(gl.arange(0, _WIDTH, layout=gl.SliceLayout(0, LAYOUT)), 0)
    async_copy.async_copy_global_to_shared(slot, gl.expand_dims(source, 1) + column)
    async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def _copy(
    query_ptr, xn_ptr, page_ptr, tile_ptr, session_ptr, table_ptr,
    query, x, query_full, query_empty, full, empty,
    HEADS: gl.constexpr, CHUNK: gl.constexpr, TABLE: gl.constexpr, LEFT: gl.constexpr, FRAMES: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """The producer warps. Queries follow the tile's first two key tiles, whose slots become free earlier."""
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [_WARPS, 1], [1, 0])
    LINE: gl.constexpr = gl.SliceLayout(1, COPY)
    slot = 0
    phase = 1
    first_phase = 1
    second_phase = 1
    for tile in range(gl.program_id(0), gl.load(tile_ptr), gl.num_programs(0)):
        session, first_frame, first_row, frames, chunks = load_tile(tile_ptr, session_ptr, tile)
        start, end = _key_range(first_frame, frames, chunks, CHUNK, LEFT, FRAMES)
        stored = chunks * CHUNK
        table = table_ptr + session * TABLE
        fresh = xn_ptr + first_row * _WIDTH
        queries = query_ptr + (first_row + first_frame) * (HEADS * _WIDTH)
        last_row = (frames - first_frame) * HEADS - 1
        count = gl.cdiv(end - start, KEYS)
        for index in range(count):
            key = gl.minimum(start + index * KEYS + gl.arange(0, KEYS, layout=LINE), end - 1)  # padding repeats the last key
            is_stored = key < stored
            page = gl.load(table + key // CHUNK, mask=is_stored, other=0).to(gl.int64)
            source = gl.where(is_stored, page_ptr + (page * CHUNK + key % CHUNK) * _WIDTH, fresh + (key - stored) * _WIDTH)
            mbarrier.wait(empty.index(slot), phase)
            _copy_rows(x.index(slot), source, full.index(slot), COPY)
            slot += 1
            if slot == _STAGES:
                slot = 0
                phase ^= 1
            if index == gl.minimum(count - 1, 1):
                number = gl.minimum(gl.arange(0, _ROWS, layout=LINE), last_row)
                mbarrier.wait(query_empty.index(0), first_phase)
                _copy_rows(query.index(0), queries + number * _WIDTH, query_full.index(0), COPY)
                first_phase ^= 1
                if last_row >= _ROWS:
                    number = gl.minimum(_ROWS + gl.arange(0, _ROWS, layout=LINE), last_row)
                    mbarrier.wait(query_empty.index(1), second_phase)
                    _copy_rows(query.index(1), queries + number * _WIDTH, query_full.index(1), COPY)
                    second_phase ^= 1
    async_copy.wait_group(0)


@gluon.jit
def _mask(scores, start, lower, upper, LEFT: gl.constexpr, LAYOUT: gl.constexpr):
    key = gl.expand_dims(start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, LAYOUT)), 0)
    visible = key < gl.expand_dims(upper, 1)
    if LEFT:
        visible = visible & (key >= gl.expand_dims(lower, 1))
    return gl.where(visible, scores, _HIDDEN)


@gluon.jit
def _own_sums(weights):
    """Each thread's sums of its own weights: [rows, 4], to be added over the four threads of a row at the end."""
    return gl.sum(gl.sum(gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2]), axis=3), axis=1)


@gluon.jit
def _faded(sums, fade, LAYOUT: gl.constexpr):
    fade = gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, LAYOUT)), 1)
    return gl.inline_asm_elementwise(_FADE, _FADE_OPERANDS, [sums, fade], dtype=gl.float32, is_pure=False, pack=128)


@gluon.jit
def _weigh(scores, scale, highest, total, sums, DTYPE: gl.constexpr, SUMS: gl.constexpr):
    """Online softmax: scores of one key tile -> weights as a matrix operand; the sums so far rescaled to the new base."""
    peak = gl.max(scores, axis=1) * scale
    raised = gl.where(peak > highest + _SLACK, peak, highest)
    fade = gl.exp2(highest - raised)
    sums = _faded(sums, fade, SUMS)
    weights = gl.exp2(scores * scale - gl.expand_dims(raised, 1))
    packed = gl.convert_layout(weights.to(DTYPE), gl.DotOperandLayout(0, SUMS, 2))
    total = total * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, total.type.layout)), 1) + _own_sums(weights)
    return packed, raised, total, sums


@gluon.jit
def _release(slot, both):
    """Release a key tile; a group that works alone arrives for the other one as well."""
    if both:
        mbarrier.arrive(slot, count=1)
    else:
        mbarrier.arrive(slot, count=2)


@gluon.jit
def _store(out, result, present, FIRST: gl.constexpr):
    """Store the present ones of a tile's output rows FIRST ... in whole sectors: threads of a row exchange columns first."""
    # In two steps that each move one bit of the column between thread and register: such a step needs no shared memory.
    HALFWAY: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 16], [0, 32], [0, 64], [0, 128], [8, 0]],
        lane_bases=[[0, 8], [0, 4], [1, 0], [2, 0], [4, 0]], warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[_ROWS, _WIDTH],
    )  # fmt: skip
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [0, 128], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[_ROWS, _WIDTH],
    )  # fmt: skip
    result = gl.convert_layout(gl.convert_layout(result, HALFWAY), OUT)
    row = FIRST + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, OUT))
    column = gl.arange(0, _WIDTH, layout=gl.SliceLayout(0, OUT))
    gl.store(out + gl.expand_dims(row * _WIDTH, 1) + gl.expand_dims(column, 0), result, mask=gl.expand_dims(row < present, 1))


@gluon.jit
def _attend(
    xn_ptr, tile_ptr, session_ptr, out_ptr, scale, query, x, query_full, query_empty, full, empty, turn,
    GROUP: gl.constexpr, HEADS: gl.constexpr, CHUNK: gl.constexpr, LEFT: gl.constexpr, FRAMES: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """One consumer group: rows 64 GROUP ... of every tile of the program. The second group skips tiles without such rows."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, _WIDTH, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    DTYPE: gl.constexpr = xn_ptr.dtype.element_ty
    nothing = gl.zeros([_ROWS, KEYS], gl.float32, layout=SCORES)
    own = query.index(GROUP)
    tiles = gl.load(tile_ptr)
    slot = 0
    phase = 0
    query_phase = 0
    turn_phase = 1 - GROUP
    last_tile = gl.maximum(tiles - 1, 0)
    _, first_frame, first_row, frames, chunks = load_tile(tile_ptr, session_ptr, gl.minimum(gl.program_id(0), last_tile))
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start, end = _key_range(first_frame, frames, chunks, CHUNK, LEFT, FRAMES)
        count = gl.cdiv(end - start, KEYS)
        present = (frames - first_frame) * HEADS
        both = present > _ROWS
        row = GROUP * _ROWS + gl.arange(0, _ROWS, layout=ROW)
        chunk = gl.minimum(first_frame + row // HEADS, frames - 1) // CHUNK
        stored = chunks * CHUNK
        upper = stored + gl.minimum((chunk + 1) * CHUNK, frames)
        lower = gl.maximum((chunks + chunk - LEFT) * CHUNK, 0) if LEFT else upper
        clear = 0 if LEFT else stored + gl.minimum(first_frame // CHUNK * CHUNK + CHUNK, frames)  # every row sees all keys before it
        out = out_ptr + (first_row + first_frame) * (HEADS * _WIDTH)
        following = gl.minimum(tile + gl.num_programs(0), last_tile)  # loaded early to hide the latency
        _, first_frame, first_row, frames, chunks = load_tile(tile_ptr, session_ptr, following)
        is_mine = both if GROUP == 1 else True
        if is_mine:
            sums = gl.zeros([_ROWS, _WIDTH], gl.float32, layout=SUMS)
            highest = gl.full([_ROWS], _HIDDEN, gl.float32, layout=ROW)
            total = _own_sums(nothing)
            mbarrier.wait(query_full.index(GROUP), query_phase)
            query_phase ^= 1
            mbarrier.wait(full.index(slot), phase)
            fence_async_shared()
            scores = warpgroup_mma(own, x.index(slot).permute((1, 0)), nothing, use_acc=False)
            for _ in range(count - 1):
                if start + KEYS > clear:
                    scores = _mask(scores, start, lower, upper, LEFT, SCORES)
                packed, highest, total, sums = _weigh(scores, scale, highest, total, sums, DTYPE, SUMS)
                start += KEYS
                coming_slot = slot + 1
                coming_phase = phase
                if coming_slot == _STAGES:
                    coming_slot = 0
                    coming_phase = phase ^ 1
                mbarrier.wait(full.index(coming_slot), coming_phase)
                fence_async_shared()
                if both:
                    mbarrier.wait(turn.index(GROUP), turn_phase)
                    turn_phase ^= 1
                summing = warpgroup_mma(packed, x.index(slot), sums, is_async=True)
                coming = warpgroup_mma(own, x.index(coming_slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
                if both:
                    mbarrier.arrive(turn.index(1 - GROUP), count=1)
                # The packed weights are a dependency, too: the tensor cores read their registers until here.
                sums, scores, packed = warpgroup_mma_wait(0, deps=(summing, coming, packed))
                _release(empty.index(slot), both)
                slot = coming_slot
                phase = coming_phase
            mbarrier.arrive(query_empty.index(GROUP), count=1)
            scores = _mask(scores, start, lower, upper, LEFT, SCORES)
            packed, highest, total, sums = _weigh(scores, scale, highest, total, sums, DTYPE, SUMS)
            sums = warpgroup_mma(packed, x.index(slot), sums)
            _release(empty.index(slot), both)
            slot += 1
            if slot == _STAGES:
                slot = 0
                phase ^= 1
            share = 1.0 / gl.convert_layout(gl.sum(total, axis=1), gl.SliceLayout(1, SUMS))
            _store(out, (sums * gl.expand_dims(share, 1)).to(DTYPE), present, GROUP * _ROWS)
        else:
            # The next wait is for this group's queries, copied after key tiles of the same tile: no phase of a slot is confused.
            passed = slot + count
            phase ^= (passed // _STAGES) & 1
            slot = passed % _STAGES


@gluon.jit
def attend_pages_large(
    query_ptr, xn_ptr, page_ptr, tile_ptr, session_ptr, table_ptr, out_ptr, scale,
    WIDTH: gl.constexpr, HEADS: gl.constexpr, CHUNK: gl.constexpr, TABLE: gl.constexpr, LEFT: gl.constexpr,
    FRAMES: gl.constexpr, KEYS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """softmax(query . X) X for FRAMES frames of one session and all heads: [rows, HEADS, WIDTH]. Grid: (programs,).

    tile: ``BatchArrays.estimator_tiles``. session: ``RateArrays.session``. table: widened pages of each session's stored chunks.
    A frame sees stored chunks and the new chunks up to its own; ``LEFT`` > 0 bounds how many chunks back.

    Any number of programs: program p computes tiles p, p + programs, ... It is fastest with
    as many programs as multiprocessors in all and the longest tiles first (``batch_filling``). FRAMES * HEADS = 128, WIDTH = 256.
    """
    gl.static_assert(FRAMES * HEADS == 2 * _ROWS and WIDTH == _WIDTH and num_warps == _WARPS)
    DTYPE: gl.constexpr = xn_ptr.dtype.element_ty
    query = gl.allocate_shared_memory(DTYPE, [2, _ROWS, _WIDTH], gl.NVMMASharedLayout.get_default_for([_ROWS, _WIDTH], DTYPE))
    x = gl.allocate_shared_memory(DTYPE, [_STAGES, KEYS, _WIDTH], gl.NVMMASharedLayout.get_default_for([KEYS, _WIDTH], DTYPE))
    query_full, query_empty = _ring_barriers(2, _THREADS, 1)
    turn = _barriers(2, 1)
    full, empty = _ring_barriers(_STAGES, _THREADS, 2)
    gl.warp_specialize(
        [
            (_attend, (xn_ptr, tile_ptr, session_ptr, out_ptr, scale, query, x, query_full, query_empty, full, empty, turn,
                       0, HEADS, CHUNK, LEFT, FRAMES, KEYS)),
            (_attend, (xn_ptr, tile_ptr, session_ptr, out_ptr, scale, query, x, query_full, query_empty, full, empty, turn,
                       1, HEADS, CHUNK, LEFT, FRAMES, KEYS)),
            (_copy, (query_ptr, xn_ptr, page_ptr, tile_ptr, session_ptr, table_ptr,
                     query, x, query_full, query_empty, full, empty, HEADS, CHUNK, TABLE, LEFT, FRAMES, KEYS)),
        ],
        [_WARPS, _WARPS],
        [_REGISTERS, _COPY_REGISTERS],
    )  # fmt: skip
