# mypy: ignore-errors
"""Attention of the estimator over stored chunks.

Pages keep the normalised input X of a transformer block, not its keys and values. With per-head projections the score of
query q and key input x is q . (K x) = (K^T q) . x, and the sum of values is V (sum of p x): every head has its own query of
the block's full width, and all heads share X as keys and as values at once. So nothing is projected for stored frames, a
page is read once for all heads, and only the new frames are multiplied by weights (the same algebra as multi-head latent
attention, https://arxiv.org/abs/2405.04434, section 2.1).
"""

import triton
import triton.language as tl

from bistream.token2mel.cuda.kernels_common import begin, layer_norm


@triton.jit
def query_rows(
    x_ptr, gamma_ptr, beta_ptr, wq_ptr, wk_ptr, live_ptr, keep_ptr, xn_ptr, page_ptr, page_half_stride, query_ptr,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, EPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """LayerNorm, query projection, times the key projection: [2 rows, HEADS, WIDTH]. Grid: (2 rows / TILE, HEADS).

    The normalised rows go to ``xn`` and, where a row's chunk is kept (``keep``: row of the page memory, or -1), to its page.
    """
    head = tl.program_id(1)
    first = tl.program_id(0) * TILE
    live = tl.load(live_ptr)
    if first % rows >= live:
        return
    column = tl.arange(0, WIDTH)
    feature = tl.arange(0, HEAD)
    wq = tl.load(wq_ptr + (head * HEAD + feature)[None, :] * WIDTH + column[:, None])
    wk = tl.load(wk_ptr + (head * HEAD + feature)[:, None] * WIDTH + column[None, :])
    gamma = tl.load(gamma_ptr + column)
    beta = tl.load(beta_ptr + column)
    begin(PDL)
    row = first + tl.arange(0, TILE)
    x = tl.load(x_ptr + row[:, None] * WIDTH + column[None, :])
    xn = layer_norm(x, gamma, beta, WIDTH, EPS).to(wq.dtype)
    if head == 0:
        tl.store(xn_ptr + row[:, None] * WIDTH + column[None, :], xn)
        is_live = (row % rows) < live
        keep = tl.load(keep_ptr + row % rows, mask=is_live, other=-1)
        target = page_ptr + (first // rows) * page_half_stride + keep.to(tl.int64) * WIDTH
        tl.store(target[:, None] + column[None, :], xn, mask=(keep >= 0)[:, None])
    query = tl.dot(xn, wq).to(wq.dtype)
    folded = tl.dot(query, wk).to(wq.dtype)
    tl.store(query_ptr + (row * HEADS + head)[:, None] * WIDTH + column[None, :], folded)


@triton.jit
def query_normed(
    xn_ptr, wq_ptr, wk_ptr, live_ptr, query_ptr,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``query_rows`` for many rows that are normalised already. Grid: (programs, HEADS); a program keeps its head's weights."""
    head = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    feature = tl.arange(0, HEAD)
    wq = tl.load(wq_ptr + (head * HEAD + feature)[None, :] * WIDTH + column[:, None])
    wk = tl.load(wk_ptr + (head * HEAD + feature)[:, None] * WIDTH + column[None, :])
    begin(PDL)
    tiles = tl.cdiv(tl.load(live_ptr), TILE)  # of one half
    for tile in tl.range(tl.program_id(0), 2 * tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile // tiles) * rows + (tile % tiles) * TILE + tl.arange(0, TILE)
        xn = tl.load(xn_ptr + row[:, None] * WIDTH + column[None, :])
        folded = tl.dot(tl.dot(xn, wq).to(wq.dtype), wk).to(wq.dtype)
        tl.store(query_ptr + (row * HEADS + head)[:, None] * WIDTH + column[None, :], folded)


@triton.jit
def attend_keys(
    query, x, key, upper, lower, scale, highest, total, sums,
    LEFT: tl.constexpr,
):  # fmt: skip
    """One tile of keys: queries [M, WIDTH] against inputs [KEYS, WIDTH], added to the running softmax (base 2)."""
    scores = tl.dot(query, tl.trans(x)) * scale
    visible = key[None, :] < upper[:, None]
    if LEFT:
        visible = visible & (key[None, :] >= lower[:, None])
    scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    base = tl.where(raised == float("-inf"), 0.0, raised)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(highest - base)
    sums = tl.dot(weights.to(x.dtype), x, sums * fade[:, None])
    return raised, total * fade + tl.sum(weights, axis=1), sums


@triton.jit
def stored_source(key, stored, table_ptr, pages, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """Addresses of stored keys' inputs; page 0 where a key is not stored."""
    page = tl.load(table_ptr + key // CHUNK, mask=key < stored, other=0).to(tl.int64)
    return pages + (page * CHUNK + key % CHUNK) * WIDTH


@triton.jit
def attend_pages(
    query_ptr, xn_ptr, page_ptr, page_half_stride, tile_ptr, session_ptr, table_ptr, out_ptr, lse_ptr, scale,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr, TABLE: tl.constexpr, LEFT: tl.constexpr,
    FRAMES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax(query . X) X for FRAMES frames of one session and all heads. Grid: (tiles, 2 halves, SPLITS).

    tile: int32 [1 + 2 tiles]: how many tiles there are, then session and first frame of each.
    session: int32 [sessions, 3]: first packed row, new frames, stored chunks. table: pages of each session's stored chunks.
    A frame sees stored chunks and the new chunks up to its own; ``LEFT`` > 0 bounds how many chunks back.
    Split s takes every SPLITS-th tile of keys from tile s on; its first one is fetched before the wait as far as it is stored.
    With one split out is [2 rows, HEADS, WIDTH]; with more, [SPLITS, 2 rows, HEADS, WIDTH], each its own softmax, and lse
    float32 [SPLITS, 2 rows, HEADS] its logarithm (base 2) of the sum.
    """
    tile = tl.program_id(0)
    half = tl.program_id(1)
    split = tl.program_id(2)
    if tile >= tl.load(tile_ptr):
        return
    session = tl.load(tile_ptr + 1 + 2 * tile)
    first_frame = tl.load(tile_ptr + 2 + 2 * tile)
    first_row = tl.load(session_ptr + 3 * session) + half * rows
    frames = tl.load(session_ptr + 3 * session + 1)
    chunks = tl.load(session_ptr + 3 * session + 2)
    stored = chunks * CHUNK
    table = table_ptr + session * TABLE
    pages = page_ptr + half * page_half_stride
    fresh = xn_ptr + first_row * WIDTH

    m = tl.arange(0, FRAMES * HEADS)
    column = tl.arange(0, WIDTH)
    frame = first_frame + m // HEADS
    exists = frame < frames
    chunk = tl.minimum(frame, frames - 1) // CHUNK
    upper = stored + tl.minimum((chunk + 1) * CHUNK, frames)  # first key that is not visible
    lower = tl.maximum((chunks + chunk - LEFT) * CHUNK, 0) if LEFT else m * 0
    end_key = tl.max(upper)
    first_key = tl.min(lower) + split * KEYS
    key = first_key + tl.arange(0, KEYS)
    is_stored = key < stored
    x = tl.load(stored_source(key, stored, table, pages, WIDTH, CHUNK)[:, None] + column[None, :], mask=is_stored[:, None], other=0.0)
    begin(PDL)
    is_fresh = (key >= stored) & (key < end_key)
    x_fresh = tl.load(fresh + (key - stored)[:, None] * WIDTH + column[None, :], mask=is_fresh[:, None], other=0.0)
    x = tl.where(is_fresh[:, None], x_fresh, x)
    number = (first_row + first_frame) * HEADS + m
    query = tl.load(query_ptr + number[:, None] * WIDTH + column[None, :], mask=exists[:, None], other=0.0)
    highest = tl.full([FRAMES * HEADS], float("-inf"), tl.float32)
    total = tl.zeros([FRAMES * HEADS], tl.float32)
    sums = tl.zeros([FRAMES * HEADS, WIDTH], tl.float32)
    highest, total, sums = attend_keys(query, x, key, upper, lower, scale, highest, total, sums, LEFT)
    for start in tl.range(first_key + SPLITS * KEYS, end_key, SPLITS * KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        source = tl.where(key < stored, stored_source(key, stored, table, pages, WIDTH, CHUNK), fresh + (key - stored) * WIDTH)
        x = tl.load(source[:, None] + column[None, :], mask=(key < end_key)[:, None], other=0.0)
        highest, total, sums = attend_keys(query, x, key, upper, lower, scale, highest, total, sums, LEFT)
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    at = number
    if SPLITS > 1:
        at = number + split * (2 * rows * HEADS)
        tl.store(lse_ptr + at, highest + tl.log2(total), mask=exists)
    tl.store(out_ptr + at[:, None] * WIDTH + column[None, :], sums.to(out_ptr.dtype.element_ty), mask=exists[:, None])


@triton.jit
def value_rows(
    attended_ptr, lse_ptr, wv_ptr, live_ptr, out_ptr,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Join the splits and project to values: [2 rows, HEADS, WIDTH] -> [2 rows, HEADS * HEAD]. Grid: (2 rows / TILE, HEADS)."""
    head = tl.program_id(1)
    first = tl.program_id(0) * TILE
    if first % rows >= tl.load(live_ptr):
        return
    column = tl.arange(0, WIDTH)
    feature = head * HEAD + tl.arange(0, HEAD)
    wv = tl.load(wv_ptr + feature[None, :] * WIDTH + column[:, None])
    begin(PDL)
    row = first + tl.arange(0, TILE)
    number = row * HEADS + head
    if SPLITS == 1:
        joined = tl.load(attended_ptr + number[:, None] * WIDTH + column[None, :])
    else:
        highest = tl.load(lse_ptr + number)
        for split in tl.static_range(1, SPLITS):
            highest = tl.maximum(highest, tl.load(lse_ptr + number + split * (2 * rows * HEADS)))
        total = tl.zeros([TILE], tl.float32)
        sums = tl.zeros([TILE, WIDTH], tl.float32)
        for split in tl.static_range(SPLITS):
            at = number + split * (2 * rows * HEADS)
            share = tl.exp2(tl.load(lse_ptr + at) - highest)
            total += share
            sums += share[:, None] * tl.load(attended_ptr + at[:, None] * WIDTH + column[None, :]).to(tl.float32)
        joined = (sums / total[:, None]).to(wv.dtype)
    values = tl.dot(joined, wv)
    tl.store(out_ptr + row[:, None] * (HEADS * HEAD) + feature[None, :], values.to(wv.dtype))
