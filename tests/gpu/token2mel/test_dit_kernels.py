"""The DiT's kernels for every CUDA GPU against the plain forms in float32: ``bistream/token2mel/dit/graphs/cuda``.

On a machine without a GPU, in Triton's interpreter:

    pip install --no-deps --target build/triton_compiler triton==3.6.0
    export TRITON_INTERPRET=1 PYTHONPATH=build/triton_compiler
    .venv/bin/python -m pytest tests/gpu/token2mel/test_dit_kernels.py tests/gpu/mel2wav/test_layer_memory.py
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu.checks import BOUNDS, DEVICE, INTERPRETED, Draw, assert_close, assert_same_rows, assert_untouched, poisoned, scales_of
from tests.plain_dit import advance, attend, convolve, padded, project_context

if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from bistream.token2mel.dit.graphs.cuda import launches
from bistream.token2mel.dit.graphs.operations import PackedConv
from bistream.token2mel.dit.graphs.tiles import StoredSlots, Tiles, turns
from bistream.token2mel.state_rows import StateRows

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

# the interpreter's products of bfloat16 are wrong
TYPES = pytest.mark.parametrize("dtype", [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16], ids=str)
STORED, TILES, HEADS, HEAD_SIZE, BLOCKS, PAGES = 16, 6, 4 if INTERPRETED else 16, 64, 2, 40
USED = 13
WIDE = 256 if INTERPRETED else 1024


@pytest.fixture(autouse=True)
def multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))


def tiles_of(draw: Draw, frames: int) -> Tiles:
    """Complete and incomplete ones and a dead one, packed in each half, and rows of none at its end. Some follow the tile before. They see
    up to ten stored slots of their half, of ``STORED`` places with ``USED`` pages, then tiles of it; one no stored ones, one nothing."""
    of_half, rows = TILES // 2, 3 * frames
    live = torch.tensor([frames, frames, 7, 0, frames - 1, frames])
    follows = torch.tensor([0, 1, 1, 0, 0, 0])
    begin = torch.cat([half * rows + live[half * of_half :][:of_half].cumsum(0) - live[half * of_half :][:of_half] for half in range(2)])
    lists = torch.zeros(TILES, 13, dtype=torch.int32, device=DEVICE)
    for tile in range(TILES):
        half = tile // of_half
        seen = half * STORED + draw.permutation(USED)[: 0 if tile == 2 else 10]
        own = 2 * STORED + half * of_half + torch.tensor([0, 1, 2] if half == 0 else [1, 2], device=DEVICE)
        seen = torch.cat([seen, own[draw.permutation(len(own))]])
        lists[tile, : len(seen)] = seen.int()
    numbers = {"begin": begin, "live": live, "follows": follows, "visible": torch.tensor([5, 11, 1, 0, 12, 0])}
    return Tiles(
        frames,
        start=draw.integers(0, 3000, TILES),
        last=torch.tensor([7, 0, 0, 9, 4, 6], device=DEVICE),
        page=torch.tensor([3, 8, 10, 10, 10, 2], device=DEVICE),
        line=draw.permutation(2 * rows),
        lists=lists,
        **{name: number.to(DEVICE, torch.int32) for name, number in numbers.items()},
    )


def stored_slots(draw: Draw, used: int) -> StoredSlots:
    """``STORED`` places for stored pages in each guidance half."""
    return StoredSlots(
        page=torch.cat([draw.permutation(PAGES)[:STORED] + PAGES * half for half in range(2)]),
        used=torch.tensor([used], dtype=torch.int32, device=DEVICE),
        start=draw.integers(0, 3000, 2 * STORED),
    )


def stored(*shape: int) -> StateRows:
    """Whose scales are NaN."""
    return StateRows(torch.zeros(*shape, dtype=torch.int8, device=DEVICE), poisoned(*shape[:-1], dtype=torch.float32))


@TYPES
@pytest.mark.parametrize("frames", [50, 80])
def test_attention_over_projected_slots(dtype: torch.dtype, frames: int) -> None:
    """``attend_slots``; stored slots that no tile sees are NaN, and so are rows of no tile."""
    draw, width = Draw("attend", frames), HEADS * HEAD_SIZE
    tiles, table = tiles_of(draw, frames), turns(3000 + frames, HEAD_SIZE, DEVICE)
    own, context = draw.normal(len(tiles.line), 3 * width, dtype=dtype), draw.normal(2 * STORED, frames, 2 * width, dtype=dtype)
    exact = attend(own.float(), context.float(), table, tiles, HEADS, 0.125)
    context.view(2, STORED, -1)[:, USED:] = float("nan")
    own[exact.isnan().all(dim=1)] = float("nan")
    found = padded(launches.attend(own, context, table, tiles, HEADS, 0.125), tiles)
    assert_close(found, padded(exact, tiles), BOUNDS[dtype])
    assert not found[-1].any()


@TYPES
@pytest.mark.parametrize("frames, dim, width", [(50, WIDE, WIDE), (80, 96, 48)])
@pytest.mark.parametrize("used", [0, 1, USED, STORED])
def test_keys_and_values_of_stored_pages(dtype: torch.dtype, frames: int, dim: int, width: int, used: int) -> None:
    """``project_pages``; pages that the batch does not read are NaN."""
    draw, head_size = Draw("project", frames, used), HEAD_SIZE if width > HEAD_SIZE else 16
    slots, table = stored_slots(draw, used), turns(3000 + frames, head_size, DEVICE)
    pages = stored(BLOCKS, 2 * PAGES, frames, dim)
    read = torch.cat([slots.page[:used], slots.page[STORED : STORED + used]])
    pages.write(1, read, draw.normal(BLOCKS, 2 * used, frames, dim))
    weight = StateRows.of((draw.normal(BLOCKS, 2 * width, dim) * dim**-0.5).to(dtype))
    bias = draw.normal(BLOCKS, 3 * width, dtype=dtype)[:, width:]  # as it lies beside the queries'
    found = launches.project_context(pages, slots, weight, bias, table)
    exact = project_context(pages, slots, weight, bias.float(), table)
    for half in range(2 if used else 0):
        rows = slice(half * STORED, half * STORED + used)
        assert_close(found[:, rows], exact[:, rows], BOUNDS[dtype])


@TYPES
@pytest.mark.parametrize("frames, dim", [(50, WIDE), (80, 256)])
def test_position_convolutions(dtype: torch.dtype, frames: int, dim: int) -> None:
    """``convolve_tiles``; the last inputs of complete tiles go to the second half of their pages' channels, and to nothing else. Rows of no
    tile are NaN."""
    draw, width, history = Draw("convolve", frames, dim), dim // 16, 30
    weight = (draw.normal(16, history + 1, width, width) * ((history + 1) * width) ** -0.5).to(dtype)
    conv, tiles = PackedConv(weight, draw.normal(dim, dtype=dtype)), tiles_of(draw, frames)
    x, tails = draw.normal(len(tiles.line), dim, dtype=dtype), stored(12, history, 2 * 16, width)
    own = tails[:, :, 16:]
    read = tiles.last[(tiles.follows == 0) & (tiles.live > 0)]
    own.write(0, read, draw.normal(len(read), history, 16, width))
    exact_own = StateRows(own.values.clone(), scales_of(own).clone())
    exact = convolve(x.float(), exact_own, tiles, PackedConv(conv.weight.float(), conv.bias.float()))
    x[exact.isnan().all(dim=1)] = float("nan")
    found = launches.convolve(x, own, tiles, conv)
    assert_close(padded(found, tiles), padded(exact, tiles), BOUNDS[dtype])
    assert_same_rows(own, exact_own, tiles.page[tiles.live == frames])
    assert_untouched(scales_of(tails)[:, :, :16], scales_of(own)[[9, 10, 11]])


@TYPES
@pytest.mark.parametrize("dim", [1024, 320])
def test_the_residual_stream_advances(dtype: torch.dtype, dim: int) -> None:
    """``advance_rows``; the norm is also in the row's line, and in no other."""
    draw, rows, frames = Draw("advance", dim), 130, 50
    x, delta = 300.0 * draw.normal(rows, dim), draw.normal(rows, dim, dtype=dtype)
    gate, shift, scale = draw.normal(3, dim)
    line, pages = draw.permutation(6 * frames)[:rows], stored(9, frames, dim)
    exact, exact_norm = advance(x, delta.float(), gate=gate, shift=shift, scale=scale)
    kinds: list[dict[str, Any]] = [{}, {"pages": pages, "line": line}]
    for places in kinds:
        stream, normed = launches.advance(x, delta, gate=gate, shift=shift, scale=scale, **places)
        assert_close(stream, exact, BOUNDS[torch.float32])
        assert_close(normed, exact_norm, BOUNDS[dtype])
    kept, expected = pages.flatten(0, 1), stored(9, frames, dim).flatten(0, 1)
    expected.write(0, line, normed)
    assert_same_rows(kept, expected, line)
    untouched = torch.ones(9 * frames, dtype=torch.bool, device=DEVICE).index_fill_(0, line, False)
    assert_untouched(scales_of(kept)[untouched])
