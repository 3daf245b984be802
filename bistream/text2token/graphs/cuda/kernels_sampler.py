# mypy: ignore-errors
"""Last kernel of a step: repetition-aware sampling as in ``sampler.RepetitionAwareSampler``, one program per row.

Reads the scores and the row's ``SamplerState``; writes the chosen head row (or a code of ``sequence``) and records it in the state, so
that the next step can start without the host.

The best top_k ids are found without sorting the vocabulary: it is dealt out to 128 groups; top_k ids score at least as much as the
top_k-th best of the groups' best scores, and hardly any others do. These candidates are ranked by comparing all pairs.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import wait_predecessor
from bistream.text2token import sequence
from bistream.text2token.graphs.batch import NUM_FIELDS, RowField

FIELDS = tl.constexpr(NUM_FIELDS)
SLOT = tl.constexpr(int(RowField.SLOT))
SAMPLES = tl.constexpr(int(RowField.SAMPLES))
INACTIVE = tl.constexpr(sequence.INACTIVE)
NOT_FINITE = tl.constexpr(sequence.NOT_FINITE)
SMALLEST_TEMPERATURE = tl.constexpr(1e-4)  # as in sampler.py
GROUP_COUNT = 128
GROUPS = tl.constexpr(GROUP_COUNT)
CANDIDATES = tl.constexpr(128)  # that are ranked at once
RANKED = tl.constexpr(32)  # the largest top_k that is drawn from ranked candidates
SCRATCH_NUMBERS = 160  # int64 per row: candidates, then the best in order
SCRATCH = tl.constexpr(SCRATCH_NUMBERS)
NO_ID = tl.constexpr(2147483647)


@triton.jit
def _mix(value):
    """The finalizer of splitmix64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _uniform(key, counter, DRAW: tl.constexpr):
    """``sampler.uniforms``: float32 in [0, 1) from 23 bits."""
    index = counter.to(tl.uint64) * 2 + (DRAW + 1)
    mixed = _mix(key.to(tl.uint64, bitcast=True) + index * 0x9E3779B97F4A7C15)
    return (mixed >> 41).to(tl.int32).to(tl.float32) * (1.0 / 8388608.0)


@triton.jit
def _key(bits, id):
    """int64 that orders by weight, then by id, the lower one first."""
    return (bits.to(tl.int64) << 32) - id


@triton.jit
def _bound(bits, top_k, SIZE: tl.constexpr):
    """A weight that at least top_k <= 128 ids reach, as bits; at least that of the smallest positive number."""
    best = tl.max(tl.reshape(bits, (SIZE // GROUPS, GROUPS)), axis=0)
    keys = _key(best, tl.arange(0, GROUPS))
    rank = tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), axis=1)
    return tl.maximum(tl.max(tl.where(rank == top_k - 1, (keys + tl.arange(0, GROUPS)) >> 32, 0), axis=0), 1)


@triton.jit
def _rank(keys, is_candidate, scratch_ptr):
    """The RANKED largest keys in descending order; minus one where there are fewer candidates, which are at most CANDIDATES."""
    place = tl.arange(0, CANDIDATES)
    tl.store(scratch_ptr + place, (-1 - place).to(tl.int64))
    tl.debug_barrier()
    tl.store(scratch_ptr + tl.cumsum(is_candidate.to(tl.int32), axis=0) - 1, keys, mask=is_candidate)
    tl.debug_barrier()
    ours = tl.load(scratch_ptr + place)
    rank = tl.sum((tl.load(scratch_ptr + place)[None, :] > ours[:, None]).to(tl.int32), axis=1)
    tl.store(scratch_ptr + CANDIDATES + rank, ours, mask=rank < RANKED)
    tl.debug_barrier()
    return tl.load(scratch_ptr + CANDIDATES + tl.arange(0, RANKED))


@triton.jit
def _draw_ranked(keys, total, uniform, top_p, top_k):
    """Draw from the nucleus of ids in descending order of weight."""
    rank = tl.arange(0, RANKED)
    ids = ((-keys) & 0xFFFFFFFF).to(tl.int32)
    weights = ((keys + ids) >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    exists = (keys >= 0) & (rank < top_k)
    sums = tl.cumsum(tl.where(exists, weights, 0.0) / total, axis=0)
    taken = tl.minimum(tl.sum((exists & (sums < top_p)).to(tl.int32), axis=0) + 1, tl.sum(exists.to(tl.int32), axis=0))
    reached = tl.max(tl.where(rank < taken, sums, 0.0), axis=0)
    passed = tl.minimum(tl.sum((exists & (sums <= uniform * reached)).to(tl.int32), axis=0), taken - 1)
    return tl.sum(tl.where(rank == passed, ids, 0), axis=0)


@triton.jit
def _draw_one_by_one(weights, ids, total, uniform, top_p, top_k):
    """The same for any top_k and any number of ties: once to know the nucleus's sum, once more up to the drawn id."""
    reached = 0.0
    taken = 0
    left = weights
    while (reached < top_p) & (taken < top_k):
        largest = tl.max(left, axis=0)
        best = tl.min(tl.where(left == largest, ids, NO_ID), axis=0)
        reached += largest / total
        left = tl.where(ids == best, -1.0, left)
        taken += 1
    threshold = uniform * reached
    passed = 0.0
    chosen = 0
    number = 0
    left = weights
    while (passed <= threshold) & (number < taken):
        largest = tl.max(left, axis=0)
        chosen = tl.min(tl.where(left == largest, ids, NO_ID), axis=0)
        passed += largest / total
        left = tl.where(ids == chosen, -1.0, left)
        number += 1
    return chosen


@triton.jit
def _draw_nucleus(weights, ids, total, uniform, top_p, top_k, scratch_ptr, SIZE: tl.constexpr):
    bits = weights.to(tl.int32, bitcast=True)
    is_candidate = bits >= _bound(bits, tl.minimum(top_k, RANKED), SIZE)
    number = tl.sum(is_candidate.to(tl.int32), axis=0)
    chosen = 0
    if (top_k <= RANKED) & (number <= CANDIDATES):
        chosen = _draw_ranked(_rank(_key(bits, ids), is_candidate, scratch_ptr), total, uniform, top_p, top_k)
    else:
        chosen = _draw_one_by_one(weights, ids, total, uniform, top_p, top_k)
    return chosen


@triton.jit
def _draw_all(weights, ids, uniform):
    """Draw an id in proportion to its weight."""
    sums = tl.cumsum(weights, axis=0)
    threshold = uniform * tl.max(sums, axis=0)
    index = tl.sum((sums <= threshold).to(tl.int32), axis=0)
    weight = tl.sum(tl.where(ids == index, weights, 0.0), axis=0)
    likeliest = tl.min(tl.where(weights == tl.max(weights, axis=0), ids, NO_ID), axis=0)
    return tl.where(weight > 0, index, likeliest)


@triton.jit
def sample_rows(
    scores_ptr, fields_ptr, chosen_ptr, scratch_ptr,
    top_p_ptr, top_k_ptr, temperature_ptr, win_size_ptr, min_repeats_ptr, key_ptr, history_ptr, num_decided_ptr, last_id_ptr,
    running_ptr, num_new_ptr, max_new_ptr, min_new_ptr, forbidden_ptr, forbidden_early_ptr, record_on_length_ptr,
    speech_offset,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, SIZE: tl.constexpr, SPEECH: tl.constexpr, HISTORY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: rows. SIZE: a power of two from VOCAB on. The state's tensors are those of ``SamplerState``, one row per slot."""
    row = tl.program_id(0)
    slot = tl.load(fields_ptr + row * FIELDS + SLOT)
    samples = tl.load(fields_ptr + row * FIELDS + SAMPLES)
    ids = tl.arange(0, SIZE)
    inside = ids < VOCAB
    if PDL:
        wait_predecessor()
    if samples > 0:
        scores = tl.load(scores_ptr + row * STRIDE + ids, mask=inside, other=float("-inf"))
        num_new = tl.load(num_new_ptr + slot)
        num_decided = tl.load(num_decided_ptr + slot)
        running = tl.load(running_ptr + slot) != 0
        temperature = tl.load(temperature_ptr + slot)
        key = tl.load(key_ptr + slot)
        is_special = inside & (ids >= SPEECH)
        at = slot * (VOCAB - SPEECH) + ids - SPEECH
        hidden = tl.load(forbidden_ptr + at, mask=is_special, other=0) != 0
        early = tl.load(forbidden_early_ptr + at, mask=is_special, other=0) != 0
        early = early & (num_new < tl.load(min_new_ptr + slot))
        # a row fails if any score is NaN or infinity, or if all are minus infinity
        largest = tl.max(tl.where(scores != scores, float("inf"), scores), axis=0)
        bad = (largest == float("inf")) | (largest == float("-inf"))
        scores = tl.where(bad, 0.0, tl.where(early | hidden, float("-inf"), scores))
        scores = tl.where(inside, scores, float("-inf"))
        greedy = temperature < SMALLEST_TEMPERATURE
        scores = scores / tl.where(greedy, 1.0, temperature)
        largest = tl.max(scores, axis=0)
        chosen = 0
        if greedy:
            chosen = tl.min(tl.where(scores == largest, ids, NO_ID), axis=0)
        else:
            weights = tl.exp(scores - largest)
            uniform = _uniform(key, num_decided, 0)
            top_k = tl.load(top_k_ptr + slot).to(tl.int32)
            chosen = _draw_nucleus(
                weights, ids, tl.sum(weights, axis=0), uniform, tl.load(top_p_ptr + slot), top_k, scratch_ptr + row * SCRATCH, SIZE
            )
            place = tl.arange(0, HISTORY)
            age = (num_decided - 1 - place + HISTORY * 2**40) % HISTORY
            in_window = age < tl.minimum(tl.load(win_size_ptr + slot), num_decided)
            history = tl.load(history_ptr + slot * HISTORY + place)
            count = tl.sum((in_window & (history == chosen)).to(tl.int64), axis=0)
            if count >= tl.load(min_repeats_ptr + slot):
                chosen = _draw_all(tl.where(ids == chosen, 0.0, weights), ids, _uniform(key, num_decided, 1))
        _record(chosen, slot, running, bad, num_new, num_decided, chosen_ptr + row, history_ptr, num_decided_ptr, last_id_ptr,
                running_ptr, num_new_ptr, max_new_ptr, record_on_length_ptr, speech_offset, SPEECH, HISTORY)  # fmt: skip


@triton.jit
def _record(
    chosen, slot, running, bad, num_new, num_decided, chosen_ptr, history_ptr, num_decided_ptr, last_id_ptr, running_ptr,
    num_new_ptr, max_new_ptr, record_on_length_ptr, speech_offset, SPEECH: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    """``SamplerState.record`` for one row; decides whether the turn ends."""
    accepted = running & (bad == 0)
    tl.store(chosen_ptr, tl.where(accepted, chosen, tl.where(running, NOT_FINITE, INACTIVE)).to(tl.int32))
    if running:
        yielded = accepted & (chosen < SPEECH)
        num_new += yielded.to(tl.int64)
        at_limit = yielded & (num_new >= tl.load(max_new_ptr + slot))
        forced = tl.load(record_on_length_ptr + slot)
        if accepted:
            tl.store(history_ptr + slot * HISTORY + num_decided % HISTORY, chosen.to(tl.int64))
            num_decided += 1
        if at_limit & (forced >= 0):
            tl.store(history_ptr + slot * HISTORY + num_decided % HISTORY, forced)
            num_decided += 1
        if yielded:
            tl.store(last_id_ptr + slot, (chosen + speech_offset).to(tl.int64))
        tl.store(num_decided_ptr + slot, num_decided)
        tl.store(num_new_ptr + slot, num_new)
        tl.store(running_ptr + slot, (yielded & (at_limit == 0)).to(tl.int8))
