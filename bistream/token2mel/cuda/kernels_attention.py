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
def attend_pages(
    query_ptr, xn_ptr, page_ptr, page_half_stride, tile_ptr, session_ptr, table_ptr, out_ptr, scale,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr, TABLE: tl.constexpr, LEFT: tl.constexpr,
    FRAMES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax(query . X) X for FRAMES frames of one session and all heads: [2 rows, HEADS, WIDTH]. Grid: (tiles, 2 halves).

    tile: int32 [1 + 2 tiles]: how many tiles there are, then session and first frame of each.
    session: int32 [sessions, 3]: first packed row, new frames, stored chunks. table: pages of each session's stored chunks.
    A frame sees stored chunks and the new chunks up to its own; ``LEFT`` > 0 bounds how many chunks back.
    """
    tile = tl.program_id(0)
    half = tl.program_id(1)
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
    number = (first_row + first_frame) * HEADS + m
    begin(PDL)
    query = tl.load(query_ptr + number[:, None] * WIDTH + column[None, :], mask=exists[:, None], other=0.0)
    highest = tl.full([FRAMES * HEADS], float("-inf"), tl.float32)
    total = tl.zeros([FRAMES * HEADS], tl.float32)
    sums = tl.zeros([FRAMES * HEADS, WIDTH], tl.float32)
    for start in tl.range(tl.min(lower), end_key, KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        page = tl.load(table + key // CHUNK, mask=key < stored, other=0).to(tl.int64)
        source = tl.where(key < stored, pages + (page * CHUNK + key % CHUNK) * WIDTH, fresh + (key - stored) * WIDTH)
        x = tl.load(source[:, None] + column[None, :], mask=(key < end_key)[:, None], other=0.0)
        highest, total, sums = attend_keys(query, x, key, upper, lower, scale, highest, total, sums, LEFT)
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + number[:, None] * WIDTH + column[None, :], sums.to(out_ptr.dtype.element_ty), mask=exists[:, None])


@triton.jit
def value_rows(
    attended_ptr, wv_ptr, live_ptr, out_ptr,
    rows, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """[2 rows, HEADS, WIDTH] projected to values: [2 rows, HEADS * HEAD]. Grid: (2 rows / TILE, HEADS)."""
    head = tl.program_id(1)
    first = tl.program_id(0) * TILE
    if first % rows >= tl.load(live_ptr):
        return
    column = tl.arange(0, WIDTH)
    feature = head * HEAD + tl.arange(0, HEAD)
    wv = tl.load(wv_ptr + feature[None, :] * WIDTH + column[:, None])
    begin(PDL)
    row = first + tl.arange(0, TILE)
    attended = tl.load(attended_ptr + (row * HEADS + head)[:, None] * WIDTH + column[None, :])
    values = tl.dot(attended, wv)
    tl.store(out_ptr + row[:, None] * (HEADS * HEAD) + feature[None, :], values.to(wv.dtype))
