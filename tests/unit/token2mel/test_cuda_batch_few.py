"""The host side of the few-row kernels: work items of attention and convolutions, repacked weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.token2mel.batching import Span
from bistream.token2mel.cuda.batch import (
    WINDOW_FRAMES,
    BatchArrays,
    Bucket,
    ChunkItemField,
    IntArray32,
    TileSizes,
    batch_shapes,
    batch_size,
    views,
)
from bistream.token2mel.cuda.batch_filling import fill
from bistream.token2mel.cuda.weights import lane_order, pack_few, window_parts
from bistream.token2mel.estimator import Estimator, TransformerBlock
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.page_pool import ZERO_PAGE
from tests.unit.token2mel.flow_fixtures import TINY, make_prompt, make_tokens

CHUNK_TOKENS, CHUNK_FRAMES = TINY.encoder.static_chunk_size, TINY.estimator.static_chunk_size
TILES = TileSizes(16, 32, 32, key_items=8, key_splits=8)
BUCKET = Bucket(256, 5)
TINY_WIDE = dataclasses.replace(TINY.estimator, channels=(64,), attention_head_dim=16, num_heads=2)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Sessions with some stored chunks and any number of new tokens."""
    found, page = [], 2
    for number in range(draw(st.integers(1, BUCKET.sessions))):
        chunks, length = draw(st.integers(0, 12)), draw(st.integers(1, 51))
        start = chunks * CHUNK_TOKENS
        context = tuple(range(page, page + chunks))
        page += chunks
        found.append(Span(make_tokens(start + length, seed=number), start, start + length, make_prompt(3, number), context))
    return found


def packed(batch: list[Span], left_context_chunks: int = 0, tiles: TileSizes = TILES) -> BatchArrays[IntArray32]:
    shapes = batch_shapes(BUCKET, tiles, TINY)
    arrays = views(np.full(batch_size(shapes), -7, np.int32), shapes)
    fill(arrays, batch, tiles, TINY, left_context_chunks)
    return arrays


@st.composite
def tile_sizes(draw: st.DrawFn) -> TileSizes:
    return dataclasses.replace(TILES, key_items=draw(st.sampled_from([1, 8, 16])), key_splits=draw(st.sampled_from([1, 2, 8])))


@settings(max_examples=20, deadline=None)
@given(spans(), st.sampled_from([0, 1, 3]), tile_sizes())
def test_every_new_frame_meets_every_visible_chunk_once(batch: list[Span], left: int, tiles: TileSizes) -> None:
    arrays = packed(batch, left, tiles)
    items = arrays.chunk_item[: int(arrays.chunk_items[0])]
    met: dict[int, list[int]] = {}
    with_keys: dict[int, int] = {}
    for first, rows, stored, chunk, session, split, splits in items[:, : len(ChunkItemField)].tolist():
        last = stored + chunk
        assert splits <= tiles.key_splits
        keys = list(range((max(last - left, 0) if left else 0) + split, last + 1, splits))
        assert stored == len(batch[session].context_pages) and 0 < rows <= CHUNK_FRAMES
        for row in range(first, first + rows):
            met.setdefault(row, []).extend(keys)
            with_keys[row] = with_keys.get(row, 0) + bool(keys)
            assert not keys or split < arrays.frame_splits[row]  # the splits with keys are the first ones
    row = 0
    for span in batch:
        for frame in range(2 * span.length):
            last = len(span.context_pages) + frame // CHUNK_FRAMES
            assert sorted(met[row]) == list(range(max(last - left, 0) if left else 0, last + 1))
            assert arrays.frame_splits[row] == with_keys[row]
            row += 1
    assert len(met) == row


@settings(max_examples=20, deadline=None)
@given(spans(), tile_sizes())
def test_items_fit_the_bucket_and_fill_the_gpu_only_when_there_is_room(batch: list[Span], tiles: TileSizes) -> None:
    arrays = packed(batch, tiles=tiles)
    chunks = sum(-(-2 * span.length // CHUNK_FRAMES) for span in batch)
    items = int(arrays.chunk_items[0])
    assert chunks <= items <= max(tiles.key_items, chunks) and items <= len(arrays.chunk_item)
    assert int(arrays.window_items[0]) <= len(arrays.window_item)


@settings(max_examples=20, deadline=None)
@given(spans())
def test_windows_cover_every_frame_once_and_know_their_history(batch: list[Span]) -> None:
    arrays = packed(batch)
    covered = []
    for first, frame, rows, page in arrays.window_item[: int(arrays.window_items[0])].tolist():
        assert 0 < rows <= WINDOW_FRAMES
        covered += list(range(first, first + rows))
        assert arrays.frames.index[first] == frame
        session = int(arrays.frame_session[first])
        assert session == arrays.frame_session[first + rows - 1]  # never rows of two sessions
        assert page == (batch[session].context_pages or (ZERO_PAGE,))[-1]
    assert covered == list(range(2 * sum(span.length for span in batch)))


def test_a_full_bucket_has_room_for_its_items() -> None:
    arrays = packed([Span(make_tokens(51), 0, 51, make_prompt(3, 0))] * 5)
    assert int(arrays.chunk_items[0]) <= len(arrays.chunk_item) and int(arrays.window_items[0]) <= len(arrays.window_item)


@pytest.mark.parametrize("width", [64, 256])
def test_lane_order_gives_every_thread_neighbours(width: int) -> None:
    """Row m of a product of four warps is in warp m // 16 % 4, of whose threads group m % 8 has it; every 64th and every 8th row of 16."""
    order = lane_order(width).tolist()
    assert sorted(order) == list(range(width))
    held: dict[tuple[int, int], list[int]] = {}
    for row, feature in enumerate(order):
        held.setdefault((row // 16 % 4, row % 8), []).append(feature)
    for features in held.values():
        assert sorted(features) == list(range(min(features), min(features) + width // 32))


def test_packed_weights_are_the_projections_by_head() -> None:
    torch.manual_seed(0)
    network = Estimator(TINY_WIDE)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    heads, size, width = TINY_WIDE.num_heads, TINY_WIDE.attention_head_dim, TINY_WIDE.channels[0]
    with torch.no_grad():
        weights = pack_few(network, heads, [8, 16])
        block = next(module for module in network.modules() if isinstance(module, TransformerBlock))
        query, x = torch.randn(heads, size), torch.randn(width)
        scores = torch.einsum("hd,hwd,w->h", query, weights.keys[block], x[lane_order(width)])
        keys = (block.to_keys_values.weight[: heads * size] @ x).view(heads, size)
        torch.testing.assert_close(scores, (query * keys).sum(1), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(query.flatten() @ weights.outputs[block], block.to_out.weight @ query.flatten(), rtol=1e-4, atol=1e-3)
    convs = [module for module in network.modules() if isinstance(module, WindowLinear) and module.weight.shape[1] == 3]
    assert set(weights.windows) == {(conv, features) for conv in convs for features in (8, 16)}


def test_window_parts_are_the_convolution() -> None:
    torch.manual_seed(0)
    conv, shortcut = WindowLinear(6, 8, 3), WindowLinear(6, 8, 1)
    for layer in (conv, shortcut):
        torch.nn.init.normal_(layer.weight)
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(1, 12, 6)
    with torch.no_grad():
        parts = window_parts(conv, shortcut, 4).transpose(1, 2).reshape(8, 4, 6)
        taps = torch.einsum("bti,fpi->bptf", x, parts)
        torch.testing.assert_close(taps[:, 0, :-2] + taps[:, 1, 1:-1] + taps[:, 2, 2:] + conv.bias, conv(x))
        torch.testing.assert_close(taps[:, 3] + shortcut.bias, shortcut(x))
        assert not window_parts(conv, None, 4)[:, 3].any()
