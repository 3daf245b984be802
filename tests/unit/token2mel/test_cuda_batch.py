"""The host side of the GPU runner: packed arrays, buckets and tiles, repacked weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoint_config import CheckpointConfig, FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.cuda.batch import TILES_HEAD, BatchArrays, Bucket, IntArray32, TileField, TileSizes, batch_shapes, batch_size, views
from bistream.token2mel.cuda.batch_filling import fill
from bistream.token2mel.cuda.tuning import BUCKETS, tile_sizes, tuning_of
from bistream.token2mel.cuda.weights import position_angles, upsample_window
from bistream.token2mel.encoder import position_table
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from tests.unit.token2mel.flow_fixtures import TINY, make_prompt, make_tokens

CHUNK = TINY.encoder.static_chunk_size
TILES = TileSizes(16, 32, 32, key_items=8, key_splits=8)
BUCKET = Bucket(320, 6)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Sessions at random positions: stored chunks, known tokens after the span, kept chunks."""
    found, page = [], 2
    for number in range(draw(st.integers(1, BUCKET.sessions))):
        chunks, length, known = draw(st.integers(0, 4)), draw(st.integers(1, 52)), draw(st.integers(0, 5))
        context = tuple(range(page, page + chunks))
        kept = tuple(draw(st.sampled_from([SCRATCH_PAGE, page + chunks + index])) for index in range(draw(st.integers(0, length // CHUNK))))
        page += chunks + length // CHUNK
        start = chunks * CHUNK
        sequence = make_tokens(start + length + known, seed=number)
        found.append(Span(sequence, start, start + length, make_prompt(3, number), context, kept))
    return found


def packed(batch: list[Span]) -> BatchArrays[IntArray32]:
    shapes = batch_shapes(BUCKET, TILES, TINY)
    arrays = views(np.zeros(batch_size(shapes), np.int32), shapes)
    fill(arrays, batch, TILES, TINY)
    return arrays


def free_row(span: Span, frame: int) -> int:
    """By definition: all forms of earlier chunks, the shorter forms of its own chunk, its position there."""
    chunk, place = divmod(frame, 2 * CHUNK)
    known = min(CHUNK, span.end - chunk * CHUNK)
    return chunk * sum(2 * tokens for tokens in range(1, CHUNK + 1)) + sum(2 * tokens for tokens in range(1, known)) + place


@settings(max_examples=20, deadline=None)
@given(spans())
def test_every_row_knows_its_place(batch: list[Span]) -> None:
    arrays = packed(batch)
    row = 0
    for number, span in enumerate(batch):
        chunks = len(span.context_pages)
        assert arrays.tokens.session[number].tolist() == [row, span.length, chunks]
        assert arrays.frames.session[number].tolist() == [2 * row, 2 * span.length, chunks]
        assert arrays.table[number, :chunks].tolist() == list(span.context_pages)
        for local in range(span.length):
            page = span.keep_pages[local // CHUNK] if local // CHUNK < len(span.keep_pages) else SCRATCH_PAGE
            within = local % CHUNK
            is_kept = page != SCRATCH_PAGE
            assert arrays.tokens.index[row + local] == local
            assert arrays.tokens.last[row + local] == (span.context_pages or (ZERO_PAGE,))[-1]
            assert arrays.tokens.keep[row + local] == (page * CHUNK + within if is_kept else -1)
            assert arrays.tokens.tail[row + local] == (2 * page + within - (CHUNK - 2) if is_kept and within >= CHUNK - 2 else -1)
            assert arrays.tokens.position[row + local] == chunks * CHUNK + local
            for frame in (2 * local, 2 * local + 1):
                at, within_frame = 2 * row + frame, frame % (2 * CHUNK)
                assert arrays.frames.index[at] == frame and arrays.frame_session[at] == number
                assert arrays.frames.keep[at] == (page * 2 * CHUNK + within_frame if is_kept else -1)
                assert arrays.frame_noise[at] == 2 * span.start + frame
                assert arrays.frame_free[at] == free_row(span, 2 * span.start + frame)
        row += span.length
    assert arrays.tokens.live[0] == row and arrays.frames.live[0] == 2 * row


def test_every_array_has_its_own_place_at_an_aligned_address() -> None:
    shapes = batch_shapes(BUCKET, TILES, TINY)
    buffer = np.zeros(batch_size(shapes), np.int32)
    taken = np.zeros(len(buffer), bool)
    for array, shape in zip(views(buffer, shapes), shapes, strict=True):
        begin = (array.ctypes.data - buffer.ctypes.data) // buffer.itemsize
        assert array.shape == shape and begin % 16 == 0
        assert not taken[begin : begin + array.size].any()
        taken[begin : begin + array.size] = True


@settings(max_examples=20, deadline=None)
@given(spans())
def test_tiles_cover_every_frame_once(batch: list[Span]) -> None:
    arrays = packed(batch)
    for tiles, size, rate in ((arrays.estimator_tiles, 16, 2), (arrays.tokens.tiles, 32, 1), (arrays.frames.tiles, 32, 2)):
        found = listed(tiles)
        expected = [[number, first] for number, span in enumerate(batch) for first in range(0, rate * span.length, size)]
        assert (sorted(found) if tiles is arrays.estimator_tiles else found) == expected


def listed(tiles: IntArray32) -> list[list[int]]:
    """Session and first row of each tile of a list."""
    rows: list[list[int]] = tiles[TILES_HEAD : TILES_HEAD + len(TileField) * tiles[0]].reshape(-1, len(TileField)).tolist()
    assert (TileField.SESSION, TileField.FIRST) == (0, 1)
    return rows


@settings(max_examples=20, deadline=None)
@given(spans())
def test_the_estimator_begins_with_the_longest_tiles(batch: list[Span]) -> None:
    """Work of a tile: keys up to the end of its last frame's chunk, as far as they exist; half as much where half the rows are padding."""
    work = []
    for number, first in listed(packed(batch).estimator_tiles):
        frames, stored = 2 * batch[number].length, 2 * CHUNK * len(batch[number].context_pages)
        frame = min(first + 16, frames) - 1
        keys = stored + sum(1 for key in range(frames) if key // (2 * CHUNK) <= frame // (2 * CHUNK))
        work.append(keys * (2 if frames - first > 8 else 1))
    assert work == sorted(work, reverse=True)


@settings(max_examples=20, deadline=None)
@given(spans())
def test_lookahead_windows_show_the_right_tokens(batch: list[Span]) -> None:
    """Each token's windows, followed back to token ids, are its neighbours; None where there is no token."""
    arrays = packed(batch)

    def token(vector: int) -> int | None:
        return int(arrays.ids[vector]) if arrays.present[vector] else None

    row = 0
    for span in batch:
        known = dict(enumerate(span.tokens))
        for local in range(span.length):
            position = span.start + local
            assert token(arrays.centre[row]) == known[position]
            for back, mixed in zip((2, 1, 0), arrays.history_window[row], strict=True):
                assert bool(arrays.lookahead_exists[mixed]) == (position - back >= 0)
                seen = [token(vector) for vector in arrays.lookahead_window[mixed]]
                assert seen == [known.get(position - back + ahead) for ahead in range(TINY.pre_lookahead_len + 1)]
            row += 1


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: str(bucket.tokens))
def test_tiles_fit_their_buckets(bucket: Bucket) -> None:
    """A tile must not contain rows of both guidance halves."""
    tuning, frames = tuning_of(bucket), bucket.tokens * FlowConfig().token_mel_ratio
    tiles = [64, 16, tuning.conv[0], tuning.residual[0]]  # 64, 16: of all buckets alike
    if tuning.few is not None:
        tiles += [tuning.few.rows, tuning.few.feed_rows]
    for rows in tiles:
        assert frames % rows == 0
    assert bucket.tokens % tuning.encoder_tile[0] == 0 and bucket.tokens % 64 == 0
    estimator = CheckpointConfig().flow.estimator
    if tuning.few is None:
        assert tuning.residual[1] == estimator.channels[0]  # whole rows, for the LayerNorm
        assert frames % 64 == 0  # rows of a program of kernels_block_many
        assert tile_sizes(tuning).estimator * estimator.num_heads == 2 * 16 * tuning.attention[2]  # two groups of warps compute


def test_the_upsampling_window_is_the_convolution_over_repeated_frames() -> None:
    generator = torch.Generator().manual_seed(0)
    conv = WindowLinear(6, 5, 5)
    conv.weight.data = torch.randn(5, 5, 6, generator=generator)
    conv.bias.data = torch.randn(5, generator=generator)
    x = torch.randn(2, 9, 6, generator=generator)  # two tokens of history first
    expected = conv(x.repeat_interleave(2, dim=1))
    window = upsample_window(conv, 2)
    windows = torch.stack([x[:, index : index + 3] for index in range(7)], dim=1)  # [2, 7, 3, 6]
    found = torch.einsum("btkc,okc->bto", windows, window).reshape(2, 7, 2, 5) + conv.bias
    torch.testing.assert_close(found.flatten(1, 2), expected, rtol=0, atol=1e-5)


def test_positions_by_the_addition_theorem() -> None:
    """Rotated queries times the table of absolute positions are queries times the sinusoids of distances."""
    width, count = 16, 40
    query = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    by_sin, by_cos = query[:, 0::2], query[:, 1::2]
    cos, sin = position_angles(count, width).chunk(2, dim=1)
    turned = torch.cat([by_sin * sin + by_cos * cos, by_cos * sin - by_sin * cos], dim=1)
    found = turned @ position_angles(count, width).T  # [i, j]
    table = position_table(count, width)  # distances count - 1 ... -(count - 1)
    for i in range(count):
        for j in range(count):
            assert abs(float(found[i, j] - query[i] @ table[count - 1 - (i - j)])) < 1e-4
