# mypy: ignore-errors
"""Last kernel of a step, in Gluon: repetition-aware sampling as in ``sampler.RepetitionAwareSampler``, one program per row.

Reads the scores and the row's ``SamplerState``; writes the chosen head row (or a code of ``sequence``) to the host's ring
and records it in the state, so that the next step can start without the host. The vocabulary is cut into 16 groups of
consecutive ids, one per warp, so that most reductions stay within a warp.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from bistream.gpu.dependent_launch import wait_predecessor
from bistream.text2token import sequence
from bistream.text2token.cuda.batch import RowField

SLOT = gl.constexpr(int(RowField.SLOT))
SAMPLES = gl.constexpr(int(RowField.SAMPLES))
INACTIVE = gl.constexpr(sequence.INACTIVE)
NOT_FINITE = gl.constexpr(sequence.NOT_FINITE)
SMALLEST_TEMPERATURE = gl.constexpr(1e-4)  # as in sampler.py
GROUPS = gl.constexpr(16)
FEW = gl.constexpr(32)  # the most candidates of a group

IDS = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [16, 1], [1, 0]))  # [group, id in group], also [1, candidate]
RANKS = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [16, 1], [1, 0]))  # [group, rank]
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def _mix(value):
    """The finalizer of splitmix64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@gluon.jit
def _uniform(key, counter, DRAW: gl.constexpr):
    """``sampler.uniforms``: float32 in [0, 1) from 23 bits."""
    index = counter.to(gl.uint64) * 2 + (DRAW + 1)
    mixed = _mix(key.to(gl.uint64, bitcast=True) + index * 0x9E3779B97F4A7C15)
    return (mixed >> 41).to(gl.int32).to(gl.float32) * (1.0 / 8388608.0)


@gluon.jit
def _best(bits, number):
    """Along axis 1: the largest of int32 ``bits`` and the lowest ``number`` with that value."""
    value = gl.max(bits, axis=1)
    return value, gl.min(gl.where(bits == value[:, None], number, 2147483647), axis=1)


@gluon.jit
def _sum_all(x):
    return gl.sum(gl.sum(x, axis=1), axis=0)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _count_candidates(bits, top_k, exchange):
    """The number of candidates per group that suffices for the best top_k <= 32 ids of all groups to be among them.

    The four best lane maxima of every group are 64 scores; at least 32 ids score no less than the 32nd of those.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [16, 1], [1, 0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lanes = gl.max(gl.max(bits.reshape((GROUPS, bits.shape[1] // 128, 32, 4)), axis=3), axis=1)
    lanes = gl.convert_layout(lanes, RANKS, assert_trivial=True)
    rank = gl.arange(0, FEW, layout=gl.SliceLayout(0, RANKS))[None, :]
    best = gl.full([GROUPS, FEW], -1, gl.int32, RANKS)
    for number in gl.static_range(4):
        value = gl.max(lanes, axis=1)
        best = gl.where(rank == number, value[:, None], best)
        lanes = gl.where(lanes == value[:, None], -1, lanes)
    exchange.store(best.permute((1, 0)))
    gl.thread_barrier()
    sixty_four = exchange._reinterpret(gl.int32, [FEW * GROUPS], flat).slice(0, 64)
    values = sixty_four.load(gl.SliceLayout(0, layout))
    keys = (values.to(gl.int64) << 32) - gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    others = gl.convert_layout(keys, gl.SliceLayout(1, layout))
    ranks = gl.sum((keys[None, :] > others[:, None]).to(gl.int32), axis=1)
    values = sixty_four.load(gl.SliceLayout(1, layout))
    bound = gl.max(gl.where(ranks == 31, values, -1), axis=0)
    gl.thread_barrier()
    count = gl.max(gl.sum((bits >= bound).to(gl.int32), axis=1), axis=0)
    return gl.minimum(count, top_k)


@gluon.jit
def _exchange_candidates(bits, ids, count, exchange_bits, exchange_ids):
    """Write the best ``count`` <= 32 ids of every group to shared memory [rank, group]."""
    rank = gl.arange(0, FEW, layout=gl.SliceLayout(0, RANKS))[None, :]
    best_bits = gl.full([GROUPS, FEW], -1, gl.int32, RANKS)
    best_ids = gl.zeros([GROUPS, FEW], gl.int32, RANKS)
    for number in range(0, count):
        value, place = _best(bits, ids)
        here = rank == number
        best_bits = gl.where(here, gl.convert_layout(value, gl.SliceLayout(1, RANKS), assert_trivial=True)[:, None], best_bits)
        best_ids = gl.where(here, gl.convert_layout(place, gl.SliceLayout(1, RANKS), assert_trivial=True)[:, None], best_ids)
        bits = gl.where(ids == place[:, None], -1, bits)
    exchange_bits.store(best_bits.permute((1, 0)))
    exchange_ids.store(best_ids.permute((1, 0)))
    gl.thread_barrier()


@gluon.jit
def _draw_sorted(exchange_bits, exchange_ids, total, uniform, top_p, top_k):
    """Draw from the nucleus of the first 256 candidates: rank them by comparing all pairs, then sum in that order."""
    many: gl.constexpr = FEW // 2 * GROUPS
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [16, 1], [1, 0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    line: gl.constexpr = gl.BlockedLayout([1], [32], [16], [0])
    bits_row = exchange_bits._reinterpret(gl.int32, [FEW * GROUPS], flat).slice(0, many).load(gl.SliceLayout(0, layout))
    ids_row = exchange_ids._reinterpret(gl.int32, [FEW * GROUPS], flat).slice(0, many).load(gl.SliceLayout(0, layout))
    keys_row = (bits_row.to(gl.int64) << 32) - ids_row
    keys = gl.convert_layout(keys_row, gl.SliceLayout(1, layout))
    ranks = gl.sum((keys_row[None, :] > keys[:, None]).to(gl.int32), axis=1)
    ranks = gl.convert_layout(ranks, gl.SliceLayout(0, layout))
    rank = gl.arange(0, FEW, layout=gl.SliceLayout(1, layout))
    here = ranks[None, :] == rank[:, None]
    order = gl.convert_layout(gl.sum(gl.where(here, ids_row[None, :], 0), axis=1), line)
    weights = gl.convert_layout(gl.sum(gl.where(here, bits_row[None, :], 0), axis=1), line).to(gl.float32, bitcast=True)
    rank = gl.arange(0, FEW, layout=line)
    weights = gl.where(rank < top_k, weights, 0.0)
    sums = gl.associative_scan(weights / total, 0, _add)
    taken = gl.minimum(gl.sum((sums < top_p).to(gl.int32), axis=0) + 1, top_k)
    reached = gl.max(gl.where(rank < taken, sums, 0.0), axis=0)
    passed = gl.minimum(gl.sum((sums <= uniform * reached).to(gl.int32), axis=0), taken - 1)
    return gl.sum(gl.where(rank == passed, order, 0), axis=0)


@gluon.jit
def _draw_listed(exchange_bits, exchange_ids, total, uniform, top_p, top_k):
    """Like ``_draw_sorted``, but takes all 512 candidates one by one; every warp does the same work."""
    bits = exchange_bits._reinterpret(gl.int32, [1, GROUPS * FEW], FLAT).load(IDS)
    ids = exchange_ids._reinterpret(gl.int32, [1, GROUPS * FEW], FLAT).load(IDS)
    rank = gl.arange(0, FEW, layout=gl.SliceLayout(0, RANKS))[None, :]
    order = gl.zeros([1, FEW], gl.int32, RANKS)
    sums = gl.full([1, FEW], float("inf"), gl.float32, RANKS)
    taken = 0
    before = 0.0
    while (before < top_p) & (taken < top_k):
        value, best = _best(bits, ids)
        chosen = gl.max(best, axis=0)
        before += gl.max(value, axis=0).to(gl.float32, bitcast=True) / total
        order = gl.where(rank == taken, chosen, order)
        sums = gl.where(rank == taken, before, sums)
        bits = gl.where((bits == value[:, None]) & (ids == chosen), -2, bits)
        taken += 1
    passed = gl.minimum(_sum_all((sums <= uniform * before).to(gl.int32)), taken - 1)
    return _sum_all(gl.where(rank == passed, order, 0))


@gluon.jit
def _draw_few(weights, ids, total, uniform, top_p, top_k, exchange_bits, exchange_ids):
    """``_draw_nucleus`` for top_k up to 32: selects among the best ids of every group."""
    bits = weights.to(gl.int32, bitcast=True)
    count = _count_candidates(bits, top_k, exchange_bits)
    _exchange_candidates(bits, ids, count, exchange_bits, exchange_ids)
    chosen = 0
    if count <= FEW // 2:
        chosen = _draw_sorted(exchange_bits, exchange_ids, total, uniform, top_p, top_k)
    else:
        chosen = _draw_listed(exchange_bits, exchange_ids, total, uniform, top_p, top_k)
    return chosen


@gluon.jit
def _draw_nucleus(weights, ids, total, uniform, top_p, top_k):
    """For any top_k: take the best ids one by one (ties: the lower id) until top_p or top_k is reached, then draw. weights >= 0."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [16], [0])
    CANDIDATES: gl.constexpr = weights.shape[0] * weights.shape[1]
    rank = gl.arange(0, CANDIDATES, layout=layout)
    order = gl.zeros([CANDIDATES], gl.int32, layout)
    sums = gl.full([CANDIDATES], float("inf"), gl.float32, layout)
    bits = weights.to(gl.int32, bitcast=True)
    taken = 0
    before = 0.0
    while (before < top_p) & (taken < top_k):
        value, place = _best(bits, ids)
        largest = gl.max(value, axis=0)
        chosen = gl.min(gl.where(value == largest, place, 2147483647), axis=0)
        before += largest.to(gl.float32, bitcast=True) / total
        order = gl.where(rank == taken, chosen, order)
        sums = gl.where(rank == taken, before, sums)
        bits = gl.where(ids == chosen, -1, bits)
        taken += 1
    passed = gl.minimum(gl.sum((sums <= uniform * before).to(gl.int32), axis=0), taken - 1)
    return gl.sum(gl.where(rank == passed, order, 0), axis=0)


@gluon.jit
def _draw_all(weights, ids, uniform):
    """Draw an id in proportion to its weight."""
    sums = gl.associative_scan(weights, 1, _add)
    group_sums = gl.sum(weights, axis=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(1, IDS))
    before = gl.zeros_like(group_sums)
    reached = 0.0
    for number in gl.static_range(GROUPS):
        before = gl.where(group == number, reached, before)
        reached += gl.sum(gl.where(group == number, group_sums, 0.0), axis=0)
    sums = sums + before[:, None]
    threshold = uniform * gl.max(gl.max(sums, axis=1), axis=0)
    index = _sum_all((sums <= threshold).to(gl.int32))
    weight = _sum_all(gl.where(ids == index, weights, 0.0))
    largest = gl.max(gl.max(weights, axis=1), axis=0)
    likeliest = gl.min(gl.min(gl.where(weights == largest, ids, 2147483647), axis=1), axis=0)
    return gl.where(weight > 0, index, likeliest)


@gluon.jit
def sample_rows(
    logits_ptr, rows_ptr, clock_ptr, results_ptr,
    top_p_ptr, top_k_ptr, temperature_ptr, win_size_ptr, min_repeats_ptr, key_ptr, history_ptr, num_decided_ptr, last_id_ptr,
    running_ptr, num_new_ptr, max_new_ptr, min_new_ptr, forbidden_ptr, forbidden_early_ptr, record_on_length_ptr,
    speech_offset,
    DEPTH: gl.constexpr, MAX_ROWS: gl.constexpr, VOCAB: gl.constexpr, VOCAB_STRIDE: gl.constexpr, SIZE: gl.constexpr,
    SPEECH: gl.constexpr, HISTORY: gl.constexpr,
):  # fmt: skip
    """Grid: rows of the bucket; 16 warps, SIZE ids each. The state's tensors are those of ``SamplerState``, one row per slot."""
    row = gl.program_id(0)
    slot = gl.load(rows_ptr + SLOT * MAX_ROWS + row)
    samples = gl.load(rows_ptr + SAMPLES * MAX_ROWS + row)
    exchange_bits = gl.allocate_shared_memory(gl.int32, [FEW, GROUPS], FLAT)
    exchange_ids = gl.allocate_shared_memory(gl.int32, [FEW, GROUPS], FLAT)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(1, IDS))[:, None]
    ids = group * SIZE + gl.arange(0, SIZE, layout=gl.SliceLayout(0, IDS))[None, :]
    inside = ids < VOCAB
    wait_predecessor()
    step = gl.load(clock_ptr + 1)
    if row == 0:
        gl.store(clock_ptr, (step + 1) % DEPTH)
    if samples > 0:
        logits = gl.load(logits_ptr + row * VOCAB_STRIDE + ids, mask=inside, other=float("-inf"))
        num_new = gl.load(num_new_ptr + slot)
        num_decided = gl.load(num_decided_ptr + slot)
        running = gl.load(running_ptr + slot) != 0
        temperature = gl.load(temperature_ptr + slot)
        key = gl.load(key_ptr + slot)
        top_p = gl.load(top_p_ptr + slot)
        top_k = gl.load(top_k_ptr + slot).to(gl.int32)
        is_special = inside & (ids >= SPEECH)
        at = slot * (VOCAB - SPEECH) + ids - SPEECH
        hidden = gl.load(forbidden_ptr + at, mask=is_special, other=0) != 0
        early = gl.load(forbidden_early_ptr + at, mask=is_special, other=0) != 0
        early = early & (num_new < gl.load(min_new_ptr + slot))
        # a row fails if any score is NaN or infinity, or if all are minus infinity
        largest = gl.max(gl.max(gl.where(logits != logits, float("inf"), logits), axis=1), axis=0)
        bad = (largest == float("inf")) | (largest == float("-inf"))
        scores = gl.where(bad, 0.0, gl.where(early | hidden, float("-inf"), logits))
        scores = gl.where(inside, scores, float("-inf"))
        greedy = temperature < SMALLEST_TEMPERATURE
        scores = scores / gl.where(greedy, 1.0, temperature)
        largest = gl.max(gl.max(scores, axis=1), axis=0)
        chosen = 0
        if greedy:
            chosen = gl.min(gl.min(gl.where(scores == largest, ids, 2147483647), axis=1), axis=0)
        else:
            weights = gl.exp(scores - largest)
            total = _sum_all(weights)
            uniform = _uniform(key, num_decided, 0)
            if top_k <= FEW:
                chosen = _draw_few(weights, ids, total, uniform, top_p, top_k, exchange_bits, exchange_ids)
            else:
                chosen = _draw_nucleus(weights, ids, total, uniform, top_p, top_k)
            place = gl.arange(0, HISTORY, layout=gl.BlockedLayout([1], [32], [16], [0]))
            age = (num_decided - 1 - place + HISTORY * 2**40) % HISTORY
            in_window = age < gl.minimum(gl.load(win_size_ptr + slot), num_decided)
            history = gl.load(history_ptr + slot * HISTORY + place)
            count = gl.sum((in_window & (history == chosen)).to(gl.int64), axis=0)
            if count >= gl.load(min_repeats_ptr + slot):
                chosen = _draw_all(gl.where(ids == chosen, 0.0, weights), ids, _uniform(key, num_decided, 1))
        _record(chosen, slot, running, bad, num_new, num_decided, results_ptr + step * MAX_ROWS + row, history_ptr,
                num_decided_ptr, last_id_ptr, running_ptr, num_new_ptr, max_new_ptr, record_on_length_ptr, speech_offset,
                SPEECH, HISTORY)  # fmt: skip


@gluon.jit
def _record(
    chosen, slot, running, bad, num_new, num_decided, result_ptr, history_ptr, num_decided_ptr, last_id_ptr, running_ptr,
    num_new_ptr, max_new_ptr, record_on_length_ptr, speech_offset, SPEECH: gl.constexpr, HISTORY: gl.constexpr,
):  # fmt: skip
    """``SamplerState.record`` for one row; decides whether the turn ends."""
    accepted = running & (bad == 0)
    result = gl.where(accepted, chosen, gl.where(running, NOT_FINITE, INACTIVE))
    gl.store(result_ptr, result.to(gl.int32))
    if running:
        yielded = accepted & (chosen < SPEECH)
        num_new += yielded.to(gl.int64)
        at_limit = yielded & (num_new >= gl.load(max_new_ptr + slot))
        forced = gl.load(record_on_length_ptr + slot)
        if accepted:
            gl.store(history_ptr + slot * HISTORY + num_decided % HISTORY, chosen.to(gl.int64))
            num_decided += 1
        if at_limit & (forced >= 0):
            gl.store(history_ptr + slot * HISTORY + num_decided % HISTORY, forced)
            num_decided += 1
        if yielded:
            gl.store(last_id_ptr + slot, (chosen + speech_offset).to(gl.int64))
        gl.store(num_decided_ptr + slot, num_decided)
        gl.store(num_new_ptr + slot, num_new)
        gl.store(running_ptr + slot, (yielded & (at_limit == 0)).to(gl.int8))
