# mypy: ignore-errors
"""``begin_rows`` and ``attend_rows`` of a step that reads an attention head as well: ``graphs.text_reading`` says what is read.

The programs that read lie beside those that attend, in the launch of the head's layer; so a step has no further kernel, and takes longer
only where reading takes longer than attention. They join through the greatest number, whatever their order.
"""

import triton
import triton.language as tl

from bistream.gpu.dependent_launch import start_successor, wait_predecessor
from bistream.text2token.graphs.batch import NUM_FIELDS, RowField
from bistream.text2token.graphs.cuda.kernels_attention import attend_rows
from bistream.text2token.graphs.cuda.kernels_rows import begin_rows
from bistream.text2token.graphs.text_reading import NOTHING as NO_NUMBER
from bistream.text2token.graphs.text_reading import NOWHERE as NO_POSITION

FIELDS = tl.constexpr(NUM_FIELDS)
SLOT = tl.constexpr(int(RowField.SLOT))
POSITION = tl.constexpr(int(RowField.POSITION))
TOKEN = tl.constexpr(int(RowField.TOKEN))
ORDER = tl.constexpr(int(RowField.ORDER))
NOTHING = tl.constexpr(NO_NUMBER)
NOWHERE = tl.constexpr(NO_POSITION)
TILE = tl.constexpr(128)  # positions


@triton.jit(do_not_specialize=["table_stride"])
def begin_and_note(
    fields_ptr, last_id_ptr, embedding_ptr, x_ptr, xb_ptr, squares_ptr, table_ptr, table_stride, is_text_ptr, found_ptr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, NORMS: tl.constexpr, NORMS_WIDTH: tl.constexpr, MAX_ROWS: tl.constexpr,
    SHRINK: tl.constexpr, TEXT_IDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``begin_rows``; and whether a row's id is text, and that nothing was found for it yet."""
    row = tl.program_id(0)
    token = tl.load(fields_ptr + row * FIELDS + TOKEN)
    position = tl.load(fields_ptr + row * FIELDS + POSITION)
    tl.store(found_ptr + row, NOTHING)
    if position >= 0:
        block = tl.load(table_ptr + tl.load(fields_ptr + row * FIELDS + SLOT) * table_stride + position // BLOCK).to(tl.int64)
        tl.store(is_text_ptr + block * BLOCK + position % BLOCK, ((token >= 0) & (token < TEXT_IDS)).to(tl.uint8))
    begin_rows(
        fields_ptr, last_id_ptr, embedding_ptr, x_ptr, xb_ptr, squares_ptr, HIDDEN, WIDTH, NORMS, NORMS_WIDTH, MAX_ROWS, SHRINK
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride"])
def attend_and_read(
    q_ptr, keys_ptr, values_ptr, fields_ptr, table_ptr, table_stride, part_ptr, arrived_ptr, attended_ptr, is_text_ptr, found_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    PROGRAMS: tl.constexpr, MOST_PARTS: tl.constexpr, SCALE: tl.constexpr, QUERY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (KV_HEADS + 1, rows, PROGRAMS): that of ``attend_rows``, and programs that read the head QUERY."""
    if tl.program_id(0) < KV_HEADS:
        attend_rows(
            q_ptr, keys_ptr, values_ptr, fields_ptr, table_ptr, table_stride, part_ptr, arrived_ptr, attended_ptr,
            HEADS, KV_HEADS, HEAD, SHARE, BLOCK, SPLIT, PROGRAMS, MOST_PARTS, SCALE, PDL,
        )  # fmt: skip
    else:
        if PDL:
            start_successor()
            wait_predecessor()
        row = tl.load(fields_ptr + tl.program_id(1) * FIELDS + ORDER)
        table = table_ptr + tl.load(fields_ptr + row * FIELDS + SLOT) * table_stride
        last = tl.load(fields_ptr + row * FIELDS + POSITION)
        best = _best(q_ptr + (row * HEADS + QUERY) * HEAD, keys_ptr, last, table, is_text_ptr,
                     QUERY * KV_HEADS // HEADS, KV_HEADS, HEAD, BLOCK, PROGRAMS)  # fmt: skip
        tl.atomic_max(found_ptr + row, best, sem="relaxed")


@triton.jit
def _best(
    q_ptr, keys_ptr, last, table, is_text_ptr,
    KV_HEAD: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Of this program's tiles of a row. Only keys of text are loaded."""
    element = tl.arange(0, HEAD)
    q = tl.load(q_ptr + element).to(tl.float32)
    best = tl.full((TILE,), NOTHING, tl.int64)
    for first in range(tl.program_id(2) * TILE, last + 1, PROGRAMS * TILE):
        position = first + tl.arange(0, TILE)
        inside = position <= last
        at = tl.load(table + position // BLOCK, mask=inside, other=0).to(tl.int64) * BLOCK + position % BLOCK
        is_text = tl.load(is_text_ptr + at, mask=inside, other=0) != 0
        keys = tl.load(keys_ptr + ((at * KV_HEADS + KV_HEAD) * HEAD)[:, None] + element[None, :], mask=is_text[:, None], other=0.0)
        score = tl.sum(keys.to(tl.float32) * q[None, :], axis=1)
        best = tl.maximum(best, tl.where(is_text, _ordered(score, position), NOTHING))
    return tl.max(best, axis=0)


@triton.jit
def _ordered(score, position):
    """Integers in the order of the scores, and against that of the positions; all bits of a negative score but the first are turned."""
    bits = score.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (position ^ NOWHERE).to(tl.int64)  # NOWHERE has all bits: NOWHERE - position
