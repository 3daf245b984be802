# mypy: ignore-errors
"""The attention of a transformer block of the estimator for few rows in two or three kernels.

``query_few``: LayerNorm and folded queries. ``attend_few``: attention over one session's chunks and the values, with the output
projection where keys are not split. ``join_few``: splits merged, output projection. ``kernels_feed_forward`` is the rest of the block.
The algebra is that of ``kernels_attention_many``: the inputs X are keys and values at once. All rows are those of one guidance half.

The residual stream x is float32 in two alternating buffers, since programs cannot add to rows that others still read:
``query_few`` reads x from ``even`` and sets ``odd`` to x plus the output's bias; the output projection is added to ``odd``, and
``attend_few`` clears ``even``; ``feed_forward_few`` reads ``odd`` and adds its result and x itself to ``even``. The order of the
atomic additions is not fixed, so the last bits of a result differ from run to run.

A tile of keys is one chunk: a widened page, or CHUNK new frames of a session. The queries of a program are rows of one chunk of new
frames, so they see a tile of keys as a whole.

Rows are always the first operand of a product: from some products with swapped operands in the same shared memory the assembler of
Triton 3.6 makes wrong code for Hopper.

Grids are one-dimensional. Programs without work wait for the predecessor before they exit, so that no kernel ends before it.
"""

import triton
import triton.language as tl

from bistream.gpu.arithmetic import fast_inverse, fast_mish
from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.token2mel.cuda.batch import CHUNK_ITEM_NUMBERS, ChunkItemField
from bistream.token2mel.cuda.pieces_few import add_rows, dot_halves, load_halves, moments, normed, prefetch
from bistream.token2mel.cuda.pieces_state import HIGHEST, whole, widen_rows

ITEM_NUMBERS = tl.constexpr(CHUNK_ITEM_NUMBERS)
ITEM_FIRST_ROW = tl.constexpr(int(ChunkItemField.FIRST_ROW))
ITEM_ROWS = tl.constexpr(int(ChunkItemField.ROWS))
ITEM_STORED = tl.constexpr(int(ChunkItemField.STORED))
ITEM_CHUNK = tl.constexpr(int(ChunkItemField.CHUNK))
ITEM_SESSION = tl.constexpr(int(ChunkItemField.SESSION))
ITEM_SPLIT = tl.constexpr(int(ChunkItemField.SPLIT))
ITEM_SPLITS = tl.constexpr(int(ChunkItemField.SPLITS))
KEYS = tl.constexpr(64)  # rows of a tile of keys, more than a chunk has
HIDDEN = tl.constexpr(-1.0e30)  # score of a missing key; finite, so that differences are not NaN


@triton.jit
def query_few(
    x_ptr, raw_ptr, raw_gamma_ptr, raw_beta_ptr, gamma_ptr, beta_ptr, wq_ptr, wk_ptr, bias_ptr, live_ptr, keep_ptr,
    odd_ptr, normed_ptr, page_ptr, scales_ptr, query_ptr, queries, read_ptr, used_ptr, widened_ptr,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    WIDENED_ROWS: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """LayerNorm, query projection, times the key projection: 16 bit [rows, HEADS, WIDTH]. Grid: ``queries``, HEADS * rows / ROWS, and any
    number of programs that widen the stored rows for the attention meanwhile, see ``widen_rows``.

    FIRST: x is not the stream but the shortcut of a residual block, and mish(LayerNorm(raw)) is added. The programs of a row tile
    divide the columns of the other stores: the normalised rows, also to the page that keeps them (keep: row of the page memory, or -1;
    page, scales: ``StateRows``), and x plus the output's bias to ``odd``. wq, wk: [HEADS * HEAD, WIDTH].
    """
    if PDL:
        start_successor()
    if tl.program_id(0) >= queries:
        part, parts = tl.program_id(0) - queries, tl.num_programs(0) - queries
        widen_rows(page_ptr, scales_ptr, read_ptr, used_ptr, widened_ptr, part, parts, CHUNK, WIDTH, WIDENED_ROWS, PDL)
        return
    head = tl.program_id(0) % HEADS
    first = tl.program_id(0) // HEADS * ROWS
    live = tl.load(live_ptr)
    if first >= live:
        if PDL:
            wait_predecessor()
        return
    HALF: tl.constexpr = WIDTH // 2
    column = tl.arange(0, HALF)[None, :]
    own = head * (WIDTH // HEADS) + tl.arange(0, WIDTH // HEADS)[None, :]
    feature = head * HEAD + tl.arange(0, HEAD)[:, None]
    wq_first, wq_second = load_halves(wq_ptr + feature * WIDTH + column, HALF)
    wk = tl.load(wk_ptr + feature * WIDTH + tl.arange(0, WIDTH)[None, :])
    gamma, beta = load_halves(gamma_ptr + column, HALF), load_halves(beta_ptr + column, HALF)
    own_gamma, own_beta, own_bias = tl.load(gamma_ptr + own), tl.load(beta_ptr + own), tl.load(bias_ptr + own)
    if FIRST:
        raw_gamma, raw_beta = load_halves(raw_gamma_ptr + column, HALF), load_halves(raw_beta_ptr + column, HALF)
        own_raw_gamma, own_raw_beta = tl.load(raw_gamma_ptr + own), tl.load(raw_beta_ptr + own)
    row = first + tl.arange(0, ROWS)[:, None]
    exists = row < live
    keep = tl.load(keep_ptr + row, mask=exists, other=-1).to(tl.int64)
    if PDL:
        wait_predecessor()

    x_first, x_second = load_halves(x_ptr + row * WIDTH + column, HALF)
    own_x = tl.load(x_ptr + row * WIDTH + own)
    if FIRST:
        raw_first, raw_second = load_halves(raw_ptr + row * WIDTH + column, HALF)
        own_raw = tl.load(raw_ptr + row * WIDTH + own)
        mean, scale = moments(raw_first, raw_second, WIDTH, EPS)
        x_first += fast_mish(normed(raw_first, mean, scale, raw_gamma[0], raw_beta[0]))
        x_second += fast_mish(normed(raw_second, mean, scale, raw_gamma[1], raw_beta[1]))
        own_x += fast_mish(normed(own_raw, mean, scale, own_raw_gamma, own_raw_beta))
    mean, scale = moments(x_first, x_second, WIDTH, EPS)
    n_first = normed(x_first, mean, scale, gamma[0], beta[0]).to(wk.dtype)
    n_second = normed(x_second, mean, scale, gamma[1], beta[1]).to(wk.dtype)
    query = dot_halves(n_first, n_second, wq_first.T, wq_second.T).to(wk.dtype)
    n_own = normed(own_x, mean, scale, own_gamma, own_beta).to(wk.dtype)
    tl.store(odd_ptr + row * WIDTH + own, own_x + own_bias.to(tl.float32), mask=exists)
    tl.store(normed_ptr + row * WIDTH + own, n_own, mask=exists)
    largest = tl.max(tl.maximum(tl.abs(n_first), tl.abs(n_second)).to(tl.float32), axis=1, keep_dims=True)
    largest += tl.sum((n_first + n_second).to(tl.float32) * 0.0, axis=1, keep_dims=True)  # the maximum passes NaN over
    kept = whole(n_own.to(tl.float32) * tl.where(largest > 0.0, HIGHEST / largest, 0.0))
    tl.store(page_ptr + keep * WIDTH + own, kept, mask=keep >= 0)
    tl.store(scales_ptr + keep, largest / HIGHEST, mask=(keep >= 0) & (head == 0))
    folded = tl.dot(query, wk).to(wk.dtype)
    tl.store(query_ptr + row * (HEADS * WIDTH) + head * WIDTH + tl.arange(0, WIDTH)[None, :], folded)


@triton.jit
def _prefetch(wv_ptr, wo_ptr, head, WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr):
    """Have the weights of a head brought to the L2 cache."""
    line = tl.arange(0, WIDTH)
    prefetch(wv_ptr + head * (HEAD * WIDTH) + line * HEAD)
    prefetch(wo_ptr + line * (HEADS * HEAD) + head * HEAD)


@triton.jit(do_not_specialize=["rows"])
def attend_few(
    query_ptr, normed_ptr, page_ptr, count_ptr, item_ptr, table_ptr, wv_ptr, wo_ptr, parts_ptr, lse_ptr,
    odd_ptr, even_ptr, scale, rows,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, CHUNK: tl.constexpr, TABLE: tl.constexpr, LEFT: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Values of softmax(query . X) X for ROWS rows of a chunk of new frames, one head and one split of the keys.

    Grid: HEADS * tiles of a chunk * items. With SPLITS 1 the head's part of the output is added to ``odd``. With more, values go to
    ``parts``, 16 bit [SPLITS, rows, HEADS, HEAD], and the log-sum-exp of the scores (base 2) to ``lse``, float32 [SPLITS, rows, HEADS]:
    see ``join_few``.
    page, table: widened pages, and each session's. count: int32, number of items. item: int32 [items, ITEM_NUMBERS], see
    ``batch.ChunkItemField``. wv: [HEADS * HEAD, WIDTH].
    wo: [WIDTH, HEADS * HEAD]. ``even`` is cleared. STAGES: tiles of keys in flight, one less in shared memory.
    """
    if PDL:
        start_successor()
    TILES: tl.constexpr = (CHUNK + ROWS - 1) // ROWS
    HALF: tl.constexpr = WIDTH // 2
    tl.static_assert(CHUNK <= KEYS)
    head = tl.program_id(0) % HEADS
    begin = tl.program_id(0) // HEADS % TILES * ROWS
    item = tl.program_id(0) // (HEADS * TILES)
    if item >= tl.load(count_ptr):
        if PDL:
            wait_predecessor()
        return
    record = item_ptr + item * ITEM_NUMBERS
    count = tl.load(record + ITEM_ROWS)
    stored = tl.load(record + ITEM_STORED)
    chunk = tl.load(record + ITEM_CHUNK)
    split = tl.load(record + ITEM_SPLIT)
    splits = tl.load(record + ITEM_SPLITS)
    last = stored + chunk  # the queries' own chunk among the keys
    first_key = (tl.maximum(last - LEFT, 0) if LEFT else 0) + split
    if (first_key > last) | (begin >= count):
        if PDL:
            wait_predecessor()
        return
    first_row = tl.load(record + ITEM_FIRST_ROW)
    table = table_ptr + tl.load(record + ITEM_SESSION) * TABLE
    fresh_ptr = normed_ptr + (first_row - chunk * CHUNK) * WIDTH
    inner = tl.arange(0, HALF)
    feature = head * HEAD + tl.arange(0, HEAD)
    page = tl.load(table + first_key, mask=first_key < stored, other=0)
    if PDL:
        _prefetch(wv_ptr, wo_ptr, head, WIDTH, HEADS, HEAD)
        wait_predecessor()

    local = begin + tl.arange(0, ROWS)
    is_row = local < count
    query_ptr += ((first_row + local) * (HEADS * WIDTH) + head * WIDTH)[None, :] + inner[:, None]
    query_first = tl.load(query_ptr, mask=is_row[None, :], other=0.0).T
    query_second = tl.load(query_ptr + HALF, mask=is_row[None, :], other=0.0).T
    if split == 0:
        share = head * (WIDTH // HEADS) + tl.arange(0, WIDTH // HEADS)
        cleared = even_ptr + ((first_row + local) * WIDTH)[:, None] + share[None, :]
        tl.store(cleared, tl.zeros([ROWS, WIDTH // HEADS], tl.float32), mask=is_row[:, None])
    sums_first = tl.zeros([ROWS, HALF], tl.float32)
    sums_second = tl.zeros([ROWS, HALF], tl.float32)
    highest = tl.full([ROWS], HIDDEN, tl.float32)
    SUMS: tl.constexpr = KEYS if ROWS < 64 else 1  # in a program of few rows several warps share a row: they add up at the end
    total = tl.zeros([ROWS, SUMS], tl.float32)
    number = tl.arange(0, KEYS)
    for key in tl.range(first_key, last + 1, splits, num_stages=STAGES):
        tile = tl.where(key < stored, page_ptr + page.to(tl.int64) * (CHUNK * WIDTH), fresh_ptr + (key - stored) * (CHUNK * WIDTH))
        page = tl.load(table + key + splits, mask=key + splits < stored, other=0)
        is_key = number < tl.where(key == last, count, CHUNK)
        at = tile + number[:, None] * WIDTH + inner[None, :]
        x_first = tl.load(at, mask=is_key[:, None], other=0.0)
        x_second = tl.load(at + HALF, mask=is_key[:, None], other=0.0)
        scores = dot_halves(query_first, query_second, x_first.T, x_second.T)
        scores = tl.where(is_key[None, :], scores * scale, HIDDEN)
        raised = tl.maximum(highest, tl.max(scores, axis=1))
        weights, fade = tl.exp2(scores - raised[:, None]), tl.exp2(highest - raised)[:, None]
        highest, total = raised, total * fade + (weights if ROWS < 64 else tl.sum(weights, axis=1, keep_dims=True))
        weights = weights.to(x_first.dtype)
        sums_first = tl.dot(weights, x_first, sums_first * fade)
        sums_second = tl.dot(weights, x_second, sums_second * fade)

    wv_ptr += feature[None, :] * WIDTH + inner[:, None]
    wv_first, wv_second = tl.load(wv_ptr), tl.load(wv_ptr + HALF)
    if SPLITS == 1:
        wo = tl.load(wo_ptr + tl.arange(0, WIDTH)[None, :] * (HEADS * HEAD) + feature[:, None])
    total = tl.sum(total, axis=1)
    inverse = fast_inverse(total)[:, None]
    values = dot_halves((sums_first * inverse).to(wv_first.dtype), (sums_second * inverse).to(wv_first.dtype), wv_first, wv_second)
    if SPLITS > 1:
        line = (split * rows + first_row + local) * HEADS + head
        part = parts_ptr + (line * HEAD)[:, None] + tl.arange(0, HEAD)[None, :]
        tl.store(part, values.to(parts_ptr.dtype.element_ty), mask=is_row[:, None])
        tl.store(lse_ptr + line, highest + tl.log2(total), mask=is_row)
    else:
        out = tl.dot(values.to(wo.dtype), wo)
        add_rows(odd_ptr + (first_row + begin) * WIDTH, out, begin, count, ROWS, WIDTH)


@triton.jit(do_not_specialize=["rows"])
def join_few(
    parts_ptr, lse_ptr, splits_ptr, wo_ptr, live_ptr, odd_ptr, rows,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the values of all splits and add one head's part of the output projection to ``odd``. Grid: HEADS * rows / ROWS.

    splits: int32 [rows], how many of the SPLITS a row has. wo: [WIDTH, HEADS * HEAD].
    """
    if PDL:
        start_successor()
    head = tl.program_id(0) % HEADS
    first = tl.program_id(0) // HEADS * ROWS
    live = tl.load(live_ptr)
    if first >= live:
        if PDL:
            wait_predecessor()
        return
    feature = tl.arange(0, HEAD)
    wo = tl.load(wo_ptr + tl.arange(0, WIDTH)[:, None] * (HEADS * HEAD) + head * HEAD + feature[None, :])
    row = first + tl.arange(0, ROWS)
    splits = tl.load(splits_ptr + row, mask=row < live, other=0)
    if PDL:
        wait_predecessor()

    parts = ()
    highest = tl.full([ROWS], HIDDEN, tl.float32)
    for split in tl.static_range(SPLITS):
        line = (split * rows + row) * HEADS + head
        lse = tl.load(lse_ptr + line, mask=split < splits, other=HIDDEN)
        part = tl.load(parts_ptr + (line * HEAD)[:, None] + feature[None, :], mask=(split < splits)[:, None], other=0.0)
        parts = parts + ((lse, part),)
        highest = tl.maximum(highest, lse)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, HEAD], tl.float32)
    for split in tl.static_range(SPLITS):
        lse, part = parts[split]
        share = tl.exp2(lse - highest)
        total += share
        values += part.to(tl.float32) * share[:, None]
    values = (values * fast_inverse(total)[:, None]).to(wo.dtype)
    add_rows(odd_ptr + first * WIDTH, tl.dot(values, wo.T), first, live, ROWS, WIDTH)
