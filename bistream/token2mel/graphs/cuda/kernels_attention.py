# mypy: ignore-errors
"""Attention of the DiT's tiles over slots: over keys and values as they leave their projection, on any GPU that Triton compiles for.

Nothing is copied between projection and attention. Keys and queries of head 0, the only ones that know positions, are turned when they are
loaded.
"""

import triton
import triton.language as tl

_HIDDEN = tl.constexpr(-1.0e30)  # score of a row that is not a key; finite, so that no difference is NaN


@triton.jit
def _turned(rows_ptr, stride, row, column, is_row, first, table_ptr, table_size, WIDTH: tl.constexpr):
    """Rows of head 0, each pair of neighbouring channels turned by its angle. first: position of row 0."""
    mask = is_row[:, None]
    own = tl.load(rows_ptr + row[:, None] * stride + column[None, :], mask=mask, other=0.0)
    other = tl.load(rows_ptr + row[:, None] * stride + (column ^ 1)[None, :], mask=mask, other=0.0)
    angle = table_ptr + (first + row)[:, None] * (WIDTH // 2) + (column // 2)[None, :]
    cosine = tl.load(angle, mask=mask, other=0.0)
    sine = tl.load(angle + table_size, mask=mask, other=0.0)
    sine = tl.where((column % 2 == 0)[None, :], -sine, sine)
    return (own.to(tl.float32) * cosine + other.to(tl.float32) * sine).to(own.dtype)


@triton.jit
def attend_slots(
    query_ptr, projected_ptr, out_ptr, table_ptr, table_size, start_ptr, live_ptr, visible_ptr, list_ptr, longest, own_slots, scale,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (tile, head, block of ROWS queries). Pointers: as the arguments of ``attention.attend_projected``.

    table_size: numbers of the table's cosines, which the sines follow. own_slots: the first tile's own slot. FRAMES: of a tile.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels: tl.constexpr = HEADS * WIDTH
    place = tile.to(tl.int64) * FRAMES * channels + head * WIDTH
    is_query = row < FRAMES
    if head == 0:
        first = tl.load(start_ptr + own_slots + tile)
        query = _turned(query_ptr + place, channels, row, column, is_query, first, table_ptr, table_size, WIDTH)
    else:
        query = tl.load(query_ptr + place + row[:, None] * channels + column[None, :], mask=is_query[:, None], other=0.0)
    peak = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.load(visible_ptr + tile)):
        slot = tl.load(list_ptr + tile * longest + number)
        live, start = tl.load(live_ptr + slot), tl.load(start_ptr + slot)
        keys = projected_ptr + slot.to(tl.int64) * FRAMES * (2 * channels) + head * WIDTH
        for block in tl.static_range((FRAMES + ROWS - 1) // ROWS):
            key_row = block * ROWS + tl.arange(0, ROWS)
            is_key = key_row < live
            place_in = key_row[:, None] * (2 * channels) + column[None, :]
            if head == 0:
                key = _turned(keys, 2 * channels, key_row, column, is_key, start, table_ptr, table_size, WIDTH)
            else:
                key = tl.load(keys + place_in, mask=is_key[:, None], other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * 1.4426950408889634)  # for powers of 2
            scores = tl.where(is_key[None, :], scores, _HIDDEN)
            raised = tl.maximum(peak, tl.max(scores, axis=1))
            fade = tl.exp2(peak - raised)
            weights = tl.where(is_key[None, :], tl.exp2(scores - raised[:, None]), 0.0)
            value = tl.load(keys + channels + place_in, mask=is_key[:, None], other=0.0)
            sums = sums * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            total = total * fade + tl.sum(weights, axis=1)
            peak = raised
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    out = out_ptr + place + row[:, None] * channels + column[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=is_query[:, None])
