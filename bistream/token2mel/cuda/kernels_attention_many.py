# mypy: ignore-errors
"""Attention of the estimator over stored chunks, for many rows.

Pages keep the normalised input X of a transformer block, not its keys and values. With per-head projections the score of
query q and key input x is q . (K x) = (K^T q) . x, and the sum of values is V (sum of p x): every head has its own query of
the block's full width, and all heads share X as keys and as values at once. So nothing is projected for stored frames, a
page is read once for all heads, and only the new frames are multiplied by weights (the same algebra as multi-head latent
attention, https://arxiv.org/abs/2405.04434, section 2.1).
"""

import triton
import triton.language as tl

from bistream.token2mel.cuda.pieces_attention import load_tile
from bistream.token2mel.cuda.pieces_state import widen_rows

_HIDDEN = tl.constexpr(-1.0e30)  # score of a key that is not visible; finite, so that a row without keys so far stays finite


@triton.jit
def _key_range(first_frame, frames, chunks, CHUNK: tl.constexpr, LEFT: tl.constexpr, FRAMES: tl.constexpr):
    """First key that a row of the tile sees, the one after the last, and the first that some row does not see."""
    stored = chunks * CHUNK
    last = tl.minimum(first_frame + FRAMES, frames) - 1
    end = stored + tl.minimum(last // CHUNK * CHUNK + CHUNK, frames)
    if LEFT:
        return tl.maximum((chunks + first_frame // CHUNK - LEFT) * CHUNK, 0), end, 0
    return 0, end, stored + tl.minimum(first_frame // CHUNK * CHUNK + CHUNK, frames)


@triton.jit
def _page_of(table_ptr, key, stored, CHUNK: tl.constexpr):
    """int16: pages of stored keys, 0 of others. table: int16, the lower half of every number is what counts.

    Triton would copy 32 bits asynchronously in a pipelined loop, which then waits for all copies.
    """
    return tl.load(table_ptr + 2 * (key // CHUNK), mask=key < stored, other=0)


@triton.jit
def widen_pages(
    values_ptr, scales_ptr, page_ptr, used_ptr, out_ptr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Any number of programs: the pages that a batch reads in 16 bit, see ``widen_rows``."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    widen_rows(values_ptr, scales_ptr, page_ptr, used_ptr, out_ptr, part, parts, CHUNK, WIDTH, ROWS, PDL=False)


@triton.jit
def attend_pages(
    query_ptr, xn_ptr, page_ptr, tile_ptr, session_ptr, table_ptr, out_ptr, scale,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr, TABLE: tl.constexpr, LEFT: tl.constexpr,
    FRAMES: tl.constexpr, PARTS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """softmax(query . X) X for FRAMES frames of one session and all heads: [rows, HEADS, WIDTH]. Grid: (PARTS * tiles,).

    A tile of the batch has PARTS * FRAMES frames.

    tile: ``BatchArrays.estimator_tiles``. session: ``RateArrays.session``. table: widened pages of each session's stored chunks.
    A frame sees stored chunks and the new chunks up to its own; ``LEFT`` > 0 bounds how many chunks back.
    """
    tile = tl.program_id(0) // PARTS
    if tile >= tl.load(tile_ptr):
        return
    session, first_frame, first_row, frames, chunks = load_tile(tile_ptr, session_ptr, tile)
    first_frame += tl.program_id(0) % PARTS * FRAMES
    if first_frame >= frames:
        return
    stored = chunks * CHUNK
    first, end, clear = _key_range(first_frame, frames, chunks, CHUNK, LEFT, FRAMES)
    row = tl.arange(0, FRAMES * HEADS)
    column = tl.arange(0, WIDTH)
    chunk = tl.minimum(first_frame + row // HEADS, frames - 1) // CHUNK
    upper = stored + tl.minimum((chunk + 1) * CHUNK, frames)
    present = (frames - first_frame) * HEADS
    place = (first_row + first_frame) * (HEADS * WIDTH)
    query = tl.load(query_ptr + place + tl.minimum(row, present - 1)[:, None] * WIDTH + column[None, :])
    highest = tl.full([FRAMES * HEADS], _HIDDEN, tl.float32)
    total = tl.zeros([FRAMES * HEADS], tl.float32)
    sums = tl.zeros([FRAMES * HEADS, WIDTH], tl.float32)
    table = (table_ptr + session * TABLE).to(tl.pointer_type(tl.int16))
    key = tl.minimum(first + tl.arange(0, KEYS), end - 1)
    page = _page_of(table, key, stored, CHUNK)
    for start in tl.range(first, end, KEYS, num_stages=STAGES):
        key = tl.minimum(start + tl.arange(0, KEYS), end - 1)  # padding repeats the last key
        is_stored = key < stored
        line = tl.where(is_stored, page.to(tl.int32) * CHUNK + key % CHUNK, first_row + key - stored)
        source = tl.where(is_stored, page_ptr, xn_ptr) + line.to(tl.int64) * WIDTH
        x = tl.load(source[:, None] + column[None, :])
        # a step ahead: the copies of a step must not wait for their addresses
        page = _page_of(table, key + KEYS, stored, CHUNK)
        scores = tl.dot(query, tl.trans(x))
        if start + KEYS > clear:
            number = start + tl.arange(0, KEYS)[None, :]
            visible = number < upper[:, None]
            if LEFT:
                visible = visible & (number >= (chunks + chunk - LEFT)[:, None] * CHUNK)
            scores = tl.where(visible, scores, _HIDDEN)
        raised = tl.maximum(highest, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - raised[:, None])
        fade = tl.exp2(highest - raised)
        total = total * fade + tl.sum(weights, axis=1)
        sums = tl.dot(weights.to(x.dtype), x, sums * fade[:, None])
        highest = raised
    sums = sums * (1.0 / total)[:, None]
    out = out_ptr + place + row[:, None] * WIDTH + column[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=(row < present)[:, None])
