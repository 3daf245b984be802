# mypy: ignore-errors
"""Attention of the flow encoder: relative positions, keys and values in pages of one chunk.

The position score of a query q at position i for a key at j is q . P r(i - j), with r(d) the sines and cosines of d times fixed
rates. By the addition theorems it is the product of (P^T q) rotated by the angles of i with the cosines and sines of j: no
score depends on two positions at once, so one table serves every context length. Positions count from the first stored key.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import soften_masked
from bistream.gpu.dependent_launch import begin
from bistream.token2mel.cuda.pieces_attention import load_tile


@triton.jit
def position_rows(
    qkv_ptr, bias_ptr, wp_ptr, table_ptr, live_ptr, position_ptr, keep_ptr, page_ptr, out_ptr,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotated position queries [rows, HEADS, WIDTH] of qkv [rows, 3 WIDTH]. Grid: (rows / TILE, HEADS).

    wp: [WIDTH, WIDTH], row = feature of q, columns of the sines first, then those of the cosines. table: [positions, WIDTH],
    cosines, then sines. Keys and values of kept rows (keep: row of the page memory, or -1) go to ``page`` [pages, chunk, 2 WIDTH].
    """
    HALF: tl.constexpr = WIDTH // 2
    head = tl.program_id(1)
    first = tl.program_id(0) * TILE
    live = tl.load(live_ptr)
    if first >= live:
        return
    feature = head * HEAD + tl.arange(0, HEAD)
    angle = tl.arange(0, HALF)
    w_sin = tl.load(wp_ptr + feature[:, None] * WIDTH + angle[None, :])
    w_cos = tl.load(wp_ptr + feature[:, None] * WIDTH + HALF + angle[None, :])
    bias = tl.load(bias_ptr + feature).to(tl.float32)
    begin(PDL)
    row = first + tl.arange(0, TILE)
    is_live = row < live
    query = tl.load(qkv_ptr + row[:, None] * (3 * WIDTH) + feature[None, :]).to(tl.float32) + bias[None, :]
    query = query.to(w_sin.dtype)
    by_sin = tl.dot(query, w_sin)
    by_cos = tl.dot(query, w_cos)
    position = tl.load(position_ptr + row, mask=is_live, other=0)
    cos = tl.load(table_ptr + position[:, None] * WIDTH + angle[None, :]).to(tl.float32)
    sin = tl.load(table_ptr + position[:, None] * WIDTH + HALF + angle[None, :]).to(tl.float32)
    out = out_ptr + (row * HEADS + head)[:, None] * WIDTH + angle[None, :]
    tl.store(out, (by_sin * sin + by_cos * cos).to(w_sin.dtype))
    tl.store(out + HALF, (by_cos * sin - by_sin * cos).to(w_sin.dtype))
    keep = tl.load(keep_ptr + row, mask=is_live, other=-1).to(tl.int64)
    if tl.max(keep) >= 0:
        for part in tl.static_range(2):  # this head's keys, then its values
            source = qkv_ptr + row[:, None] * (3 * WIDTH) + (1 + part) * WIDTH + feature[None, :]
            kept = tl.load(source, mask=(keep >= 0)[:, None], other=0.0)
            tl.store(page_ptr + keep[:, None] * (2 * WIDTH) + part * WIDTH + feature[None, :], kept, mask=(keep >= 0)[:, None])


@triton.jit
def attend_relative(
    qkv_ptr, bias_ptr, turned_ptr, position_table_ptr, page_ptr, tile_ptr, session_ptr, table_ptr, out_ptr, scale,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, CHUNK: tl.constexpr, TABLE: tl.constexpr, LEFT: tl.constexpr,
    FRAMES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax((query + u) . keys + turned . positions) values -> [rows, WIDTH]. Grid: (tiles, HEADS).

    turned: from ``position_rows``. tile, session: ``RateArrays.tiles`` and ``session``. table: pages of each session's stored chunks.
    bias: u, [WIDTH].
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    if tile >= tl.load(tile_ptr):
        return
    begin(PDL)
    session, first_frame, first_row, frames, chunks = load_tile(tile_ptr, session_ptr, tile)
    stored = chunks * CHUNK

    frame = first_frame + tl.arange(0, FRAMES)
    exists = frame < frames
    chunk = tl.minimum(frame, frames - 1) // CHUNK
    upper = stored + tl.minimum((chunk + 1) * CHUNK, frames)
    lower = tl.maximum((chunks + chunk - LEFT) * CHUNK, 0) if LEFT else frame * 0
    feature = head * HEAD + tl.arange(0, HEAD)
    column = tl.arange(0, WIDTH)
    row = first_row + frame
    query = tl.load(qkv_ptr + row[:, None] * (3 * WIDTH) + feature[None, :], mask=exists[:, None], other=0.0).to(tl.float32)
    query = (query + tl.load(bias_ptr + feature).to(tl.float32)[None, :]).to(qkv_ptr.dtype.element_ty)
    turned = tl.load(turned_ptr + (row * HEADS + head)[:, None] * WIDTH + column[None, :], mask=exists[:, None], other=0.0)
    highest = tl.full([FRAMES], float("-inf"), tl.float32)
    total = tl.zeros([FRAMES], tl.float32)
    sums = tl.zeros([FRAMES, HEAD], tl.float32)
    for start in tl.range(tl.min(lower), tl.max(upper), KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        is_stored = key < stored
        is_key = key < tl.max(upper)
        page = tl.load(table_ptr + session * TABLE + key // CHUNK, mask=is_stored, other=0).to(tl.int64)
        kept = page_ptr + (page * CHUNK + key % CHUNK) * (2 * WIDTH)
        fresh = qkv_ptr + (first_row + key - stored) * (3 * WIDTH) + WIDTH
        source = tl.where(is_stored, kept, fresh)[:, None] + feature[None, :]
        keys = tl.load(source, mask=is_key[:, None], other=0.0)
        values = tl.load(source + WIDTH, mask=is_key[:, None], other=0.0)
        positions = tl.load(position_table_ptr + key[:, None] * WIDTH + column[None, :], mask=is_key[:, None], other=0.0)
        scores = (tl.dot(query, tl.trans(keys)) + tl.dot(turned, tl.trans(positions))) * scale
        visible = key[None, :] < upper[:, None]
        if LEFT:
            visible = visible & (key[None, :] >= lower[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        weights, fade, highest, total = soften_masked(scores, highest, total)
        sums = tl.dot(weights.to(values.dtype), values, sums * fade[:, None])
    sums = sums / total[:, None]
    tl.store(out_ptr + row[:, None] * WIDTH + feature[None, :], sums.to(out_ptr.dtype.element_ty), mask=exists[:, None])
