# mypy: ignore-errors
"""The DiT's position convolutions: grouped, causal, then Mish; they keep the last inputs of each tile. On any GPU."""

import triton
import triton.language as tl

from bistream.token2mel.cuda.pieces_state import scaled_rows


@triton.jit
def convolve_tiles(
    x_ptr, tail_ptr, scales_ptr, tail_stride, begin_ptr, live_ptr, follows_ptr, last_ptr, page_ptr, weight_ptr, bias_ptr, out_ptr,
    FRAMES: tl.constexpr, HISTORY: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (tile, group of WIDTH channels, block of ROWS frames). x_ptr, out_ptr: [rows, DIM].

    begin_ptr, live_ptr, follows_ptr, last_ptr, page_ptr: of ``Tiles``; FRAMES: of a complete tile, whose last frames alone go to its page.
    tail_ptr: of the page's first frame, [HISTORY, ...] with ``tail_stride`` numbers between frames, HISTORY frames to a page; a group's
    numbers are a row of ``StateRows``, with scales_ptr. weight_ptr: [groups, HISTORY + 1, in, out].
    """
    tile, group = tl.program_id(0), tl.program_id(1)
    row, channel = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    live = tl.load(live_ptr + tile)
    if live == 0:
        return
    first = group * WIDTH
    begin = tl.load(begin_ptr + tile).to(tl.int64) * DIM + first
    first_stored = (tl.load(last_ptr + tile) + 1) * HISTORY  # the frame after it
    is_stored = tl.load(follows_ptr + tile) == 0
    weights = weight_ptr + group.to(tl.int64) * ((HISTORY + 1) * WIDTH * WIDTH)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for tap in range(HISTORY + 1):
        frame = row + tap - HISTORY
        rows, is_stored_row = x_ptr + begin + frame * DIM, is_stored & (frame < 0)
        taps = tl.load(rows[:, None] + channel[None, :], mask=((frame < live) & ~is_stored_row)[:, None], other=0.0)
        stored_row = (first_stored + frame) * tail_stride + first
        stored = tl.load(tail_ptr + stored_row[:, None] + channel[None, :], mask=is_stored_row[:, None], other=0)
        stored = stored.to(tl.float32) * tl.load(scales_ptr + stored_row // WIDTH, mask=is_stored_row, other=0.0)[:, None]
        taps = tl.where(is_stored_row[:, None], stored.to(taps.dtype), taps)
        weight = tl.load(weights + tap * (WIDTH * WIDTH) + channel[:, None] * WIDTH + channel[None, :])
        sums = tl.dot(taps, weight, sums, input_precision="ieee")
    sums += tl.load(bias_ptr + first + channel)[None, :].to(tl.float32)
    grown = tl.where(sums > 20.0, sums, tl.log(1.0 + tl.exp(tl.minimum(sums, 20.0))))  # softplus; Mish is x * tanh(softplus(x))
    shrunk = tl.exp(-2.0 * grown)
    result = sums * (1.0 - shrunk) / (1.0 + shrunk)
    is_row = row < live
    own = begin + row * DIM
    tl.store(out_ptr + own[:, None] + channel[None, :], result.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
    kept = (tl.load(page_ptr + tile) * HISTORY + row - (FRAMES - HISTORY)) * tail_stride + first
    is_kept = is_row & (row >= FRAMES - HISTORY) & (live == FRAMES)
    ends = tl.load(x_ptr + own[:, None] + channel[None, :], mask=is_kept[:, None], other=0.0)
    ends, scale = scaled_rows(ends)
    tl.store(scales_ptr + kept // WIDTH, scale, mask=is_kept)
    tl.store(tail_ptr + kept[:, None] + channel[None, :], ends, mask=is_kept[:, None])
