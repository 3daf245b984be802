# mypy: ignore-errors
"""Attention of the DiT's tiles over slots, on any GPU that Triton compiles for: over keys and values where their projections leave them."""

import triton
import triton.language as tl

from bistream.token2mel.dit.graphs.cuda.pieces_rotation import turned

_HIDDEN = tl.constexpr(-1.0e30)  # score of a row that is not a key; finite, so that no difference is NaN
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def turn_tiles(
    own_ptr, table_ptr, table_size, start_ptr,
    FRAMES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Turn head 0 of the tiles' queries and keys where they are. Program (tile, query or key, block of ROWS frames).

    own_ptr: [tiles, FRAMES, 3 * CHANNELS]. table_size: numbers of the table's cosines, which the sines follow. start_ptr: of the tiles.
    """
    tile, row, column = tl.program_id(0), tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    rows = own_ptr + (tile.to(tl.int64) * FRAMES + row) * (3 * CHANNELS) + tl.program_id(1) * CHANNELS
    is_row = (row < FRAMES)[:, None]
    x = tl.load(rows[:, None] + column[None, :], mask=is_row, other=0.0)
    position = tl.load(start_ptr + tile) + tl.minimum(row, FRAMES - 1)
    result = turned(x.to(tl.float32), position, 0, table_ptr, table_size, WIDTH, ROWS, WIDTH)
    tl.store(rows[:, None] + column[None, :], result.to(own_ptr.dtype.element_ty), mask=is_row)


@triton.jit
def attend_slots(
    own_ptr, context_ptr, out_ptr, live_ptr, visible_ptr, list_ptr, longest, stored, scale,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, head, block of ROWS queries). Head 0 is turned. Pointers: as the arguments of ``launches.attend``.

    stored: slots of the context, before those of the tiles. FRAMES: of a tile. STAGES: of the loop over slots.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels: tl.constexpr = HEADS * WIDTH
    is_query = (row < FRAMES)[:, None]
    queries = own_ptr + (tile.to(tl.int64) * FRAMES + row) * (3 * channels) + head * WIDTH
    query = tl.load(queries[:, None] + column[None, :], mask=is_query, other=0.0)
    peak = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    slots = list_ptr + tile * longest
    for number in tl.range(tl.load(visible_ptr + tile), num_stages=STAGES):
        slot = tl.load(slots + number)
        live = tl.load(live_ptr + slot)
        is_stored = slot < stored
        stride = tl.where(is_stored, 2 * channels, 3 * channels)
        place = tl.where(is_stored, slot, slot - stored).to(tl.int64) * (FRAMES * stride) + head * WIDTH
        keys = tl.where(is_stored, context_ptr, own_ptr + channels) + place
        for block in tl.static_range((FRAMES + ROWS - 1) // ROWS):
            key_row = block * ROWS + tl.arange(0, ROWS)
            rows = keys + key_row * stride
            is_row = (key_row < FRAMES)[:, None]  # those from live on hold numbers, of padding, which get no weight
            key = tl.load(rows[:, None] + column[None, :], mask=is_row, other=0.0)
            value = tl.load((rows + channels)[:, None] + column[None, :], mask=is_row, other=0.0)
            is_key = (key_row < live)[None, :]
            scores = tl.where(is_key, tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * _LOG2_E), _HIDDEN)
            raised = tl.maximum(peak, tl.max(scores, axis=1))
            fade = tl.exp2(peak - raised)
            weights = tl.where(is_key, tl.exp2(scores - raised[:, None]), 0.0)
            sums = sums * fade[:, None]
            sums = tl.dot(weights.to(value.dtype), value, sums, input_precision="ieee")
            total = total * fade + tl.sum(weights, axis=1)
            peak = raised
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    out = out_ptr + (tile.to(tl.int64) * FRAMES + row) * channels + head * WIDTH
    tl.store(out[:, None] + column[None, :], sums.to(out_ptr.dtype.element_ty), mask=is_query)
