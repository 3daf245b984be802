# mypy: ignore-errors
"""Attention of the DiT's tiles over slots: over keys and values as they leave their projections, on any GPU that Triton compiles for.

Nothing is copied between projection and attention. Keys and queries of head 0, the only ones that know positions, are turned when they are
loaded.
"""

import triton
import triton.language as tl

_HIDDEN = tl.constexpr(-1.0e30)  # score of a row that is not a key; finite, so that no difference is NaN
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(rows_ptr, stride, row, column, is_row, first, table_ptr, table_size, WIDTH: tl.constexpr, TURNED: tl.constexpr):
    """Rows of one head; TURNED: each pair of neighbouring channels by its angle. first: position of row 0."""
    mask = is_row[:, None]
    own = tl.load(rows_ptr + row[:, None] * stride + column[None, :], mask=mask, other=0.0)
    if not TURNED:
        return own
    other = tl.load(rows_ptr + row[:, None] * stride + (column ^ 1)[None, :], mask=mask, other=0.0)
    angle = table_ptr + (first + row)[:, None] * (WIDTH // 2) + (column // 2)[None, :]
    cosine = tl.load(angle, mask=mask, other=0.0)
    sine = tl.load(angle + table_size, mask=mask, other=0.0)
    sine = tl.where((column % 2 == 0)[None, :], -sine, sine)
    return (own.to(tl.float32) * cosine + other.to(tl.float32) * sine).to(own.dtype)


@triton.jit
def _attend(
    own_ptr, context_ptr, out_ptr, table_ptr, table_size, start_ptr, live_ptr, visible_ptr, list_ptr, longest, stored, scale,
    tile, head, FRAMES: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels: tl.constexpr = HEADS * WIDTH
    is_query = row < FRAMES
    queries = own_ptr + tile.to(tl.int64) * FRAMES * (3 * channels) + head * WIDTH
    first = tl.load(start_ptr + stored + tile)
    query = _rows(queries, 3 * channels, row, column, is_query, first, table_ptr, table_size, WIDTH, TURNED)
    peak = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.load(visible_ptr + tile)):
        slot = tl.load(list_ptr + tile * longest + number)
        live, start = tl.load(live_ptr + slot), tl.load(start_ptr + slot)
        is_stored = slot < stored
        stride = tl.where(is_stored, 2 * channels, 3 * channels)
        place = tl.where(is_stored, slot, slot - stored).to(tl.int64) * FRAMES * stride
        keys = tl.where(is_stored, context_ptr, own_ptr + channels) + place + head * WIDTH
        for block in tl.static_range((FRAMES + ROWS - 1) // ROWS):
            key_row = block * ROWS + tl.arange(0, ROWS)
            is_key = key_row < live
            key = _rows(keys, stride, key_row, column, is_key, start, table_ptr, table_size, WIDTH, TURNED)
            value = tl.load(keys + channels + key_row[:, None] * stride + column[None, :], mask=is_key[:, None], other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * _LOG2_E)
            scores = tl.where(is_key[None, :], scores, _HIDDEN)
            raised = tl.maximum(peak, tl.max(scores, axis=1))
            fade = tl.exp2(peak - raised)
            weights = tl.where(is_key[None, :], tl.exp2(scores - raised[:, None]), 0.0)
            sums = sums * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            total = total * fade + tl.sum(weights, axis=1)
            peak = raised
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    out = out_ptr + (tile.to(tl.int64) * FRAMES + row)[:, None] * channels + head * WIDTH + column[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=is_query[:, None])


@triton.jit
def attend_slots(
    own_ptr, context_ptr, out_ptr, table_ptr, table_size, start_ptr, live_ptr, visible_ptr, list_ptr, longest, stored, scale,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (tile, head, block of ROWS queries). Pointers: as the arguments of ``dit_attention.attend_projected``.

    table_size: numbers of the table's cosines, which the sines follow. stored: slots of the context, before those of the tiles. FRAMES: of
    a tile.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    if head == 0:
        _attend(
            own_ptr, context_ptr, out_ptr, table_ptr, table_size, start_ptr, live_ptr, visible_ptr, list_ptr, longest, stored, scale,
            tile, head, FRAMES, HEADS, WIDTH, ROWS, True,
        )  # fmt: skip
    else:
        _attend(
            own_ptr, context_ptr, out_ptr, table_ptr, table_size, start_ptr, live_ptr, visible_ptr, list_ptr, longest, stored, scale,
            tile, head, FRAMES, HEADS, WIDTH, ROWS, False,
        )  # fmt: skip
