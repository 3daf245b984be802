# mypy: ignore-errors
"""Attention of the DiT's tiles over slots, on any GPU that Triton compiles for: over keys and values where their projections leave them.

Head 0 alone knows positions. Stored keys are turned where they are projected, those of the tiles here, with the queries.
"""

import triton
import triton.language as tl

from bistream.token2mel.dit.graphs.cuda.pieces_rotation import turned

_HIDDEN = tl.constexpr(-1.0e30)  # score of a row that is not a key; finite, so that no difference is NaN
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _see(
    query, keys, stride, live, turns, start, table_ptr, table_size, scale, peak, total, sums,
    FRAMES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Online softmax: ``peak``, ``total`` and ``sums`` with the ``live`` rows of one slot, at most FRAMES, ROWS at a time.

    keys: the first one; its value is CHANNELS behind it, the next one ``stride``. turns: whether keys are turned; start: position of
    the first then.
    """
    column = tl.arange(0, WIDTH)
    for block in tl.static_range((FRAMES + ROWS - 1) // ROWS):
        row = block * ROWS + tl.arange(0, ROWS)
        rows = keys + row * stride
        is_live = row < live
        key = tl.load(rows[:, None] + column[None, :], mask=is_live[:, None], other=0.0)
        value = tl.load((rows + CHANNELS)[:, None] + column[None, :], mask=is_live[:, None], other=0.0)
        if turns:
            position = start + tl.minimum(row, FRAMES - 1)
            key = turned(key.to(tl.float32), position, 0, table_ptr, table_size, WIDTH, ROWS, WIDTH).to(key.dtype)
        is_key = is_live[None, :]
        scores = tl.where(is_key, tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * _LOG2_E), _HIDDEN)
        raised = tl.maximum(peak, tl.max(scores, axis=1))
        fade = tl.exp2(peak - raised)
        weights = tl.where(is_key, tl.exp2(scores - raised[:, None]), 0.0)
        sums = tl.dot(weights.to(value.dtype), value, sums * fade[:, None], input_precision="ieee")
        total = total * fade + tl.sum(weights, axis=1)
        peak = raised
    return peak, total, sums


@triton.jit
def attend_slots(
    own_ptr, context_ptr, out_ptr, begin_ptr, live_ptr, start_ptr, visible_ptr, list_ptr, longest, table_ptr, table_size, stored, scale,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, head, block of ROWS queries). Pointers: as the arguments of ``launches.attend``.

    stored: slots of the context, before those of the tiles. FRAMES: of a complete tile, and of each stored slot. STAGES: of the loop over
    stored slots.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels: tl.constexpr = HEADS * WIDTH
    queries = tl.load(live_ptr + tile)
    if queries == 0:
        return
    begin = tl.load(begin_ptr + tile).to(tl.int64)
    is_query = (row < queries)[:, None]
    places = own_ptr + (begin + row) * (3 * channels) + head * WIDTH
    query = tl.load(places[:, None] + column[None, :], mask=is_query, other=0.0)
    if head == 0:
        position = tl.load(start_ptr + tile) + tl.minimum(row, FRAMES - 1)
        query = turned(query.to(tl.float32), position, 0, table_ptr, table_size, WIDTH, ROWS, WIDTH).to(query.dtype)
    peak = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    slots, number = list_ptr + tile * longest, tl.load(visible_ptr + tile) - 1
    slot = tl.load(slots + number, mask=number >= 0, other=0)
    while number >= 0 and slot >= stored:  # the tiles, which are the last ones
        seen = slot - stored
        keys = own_ptr + channels + tl.load(begin_ptr + seen).to(tl.int64) * (3 * channels) + head * WIDTH
        peak, total, sums = _see(
            query, keys, 3 * channels, tl.load(live_ptr + seen), head == 0, tl.load(start_ptr + seen), table_ptr, table_size, scale,
            peak, total, sums, FRAMES, channels, WIDTH, ROWS,
        )  # fmt: skip
        number -= 1
        slot = tl.load(slots + number, mask=number >= 0, other=0)
    for other in tl.range(number + 1, num_stages=STAGES):
        slot = tl.load(slots + other)
        keys = context_ptr + slot.to(tl.int64) * (FRAMES * 2 * channels) + head * WIDTH
        peak, total, sums = _see(
            query, keys, 2 * channels, FRAMES, False, 0, table_ptr, table_size, scale, peak, total, sums,
            FRAMES, channels, WIDTH, ROWS,
        )  # fmt: skip
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    out = out_ptr + (begin + row) * channels + head * WIDTH
    tl.store(out[:, None] + column[None, :], sums.to(out_ptr.dtype.element_ty), mask=is_query)
