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
from torch import Tensor

from tests.gpu.checks import BOUNDS, DEVICE, INTERPRETED, Draw, assert_close, assert_same_rows, assert_untouched, poisoned, scales_of
from tests.plain_dit import advance, attend_projected, convolve, project_context

if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from bistream.token2mel.dit.graphs.attention import Slots, turns
from bistream.token2mel.dit.graphs.cuda import launches
from bistream.token2mel.dit.graphs.operations import PackedConv
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


def slots(draw: Draw, frames: int, used: int) -> Slots:
    """Stored slots, then tiles, each in any order; partly filled ones; a tile that sees none, one that sees no stored ones. ``STORED``
    places for stored pages in each guidance half."""
    count, of_half = 2 * STORED + TILES, TILES // 2
    live = torch.full((count,), frames, dtype=torch.int32, device=DEVICE)
    live[2 * STORED + 1 :: 2] = 7
    lists = torch.zeros(TILES, 13, dtype=torch.int32, device=DEVICE)
    for tile in range(TILES):
        half = tile // of_half
        stored = half * STORED + draw.permutation(used)[: 0 if tile == 3 else 10]
        own = 2 * STORED + torch.arange(half * of_half, tile + 1, device=DEVICE)
        seen = torch.cat([stored, own[draw.permutation(len(own))]])
        lists[tile, : len(seen)] = seen.int()
    return Slots(
        page=torch.cat([draw.permutation(PAGES)[:STORED] + PAGES * half for half in range(2)]),
        used=torch.tensor([used], dtype=torch.int32, device=DEVICE),
        start=draw.integers(0, 3000, count),
        live=live,
        visible=torch.tensor([1, 5, 11, 1, 12, 0], dtype=torch.int32, device=DEVICE),
        lists=lists,
    )


def stored(*shape: int) -> StateRows:
    """Whose scales are NaN."""
    return StateRows(torch.zeros(*shape, dtype=torch.int8, device=DEVICE), poisoned(*shape[:-1], dtype=torch.float32))


@TYPES
@pytest.mark.parametrize("frames", [50, 80])
def test_attention_over_projected_slots(dtype: torch.dtype, frames: int) -> None:
    """``attend_slots``; stored slots that no tile sees are NaN."""
    draw, width = Draw("attend", frames), HEADS * HEAD_SIZE
    seen, table = slots(draw, frames, USED), turns(3000 + frames, HEAD_SIZE, DEVICE)
    own, context = draw.normal(TILES, frames, 3 * width, dtype=dtype), draw.normal(2 * STORED, frames, 2 * width, dtype=dtype)
    exact = attend_projected(own.float(), context.float(), table, seen, HEADS, 0.125)
    context.view(2, STORED, -1)[:, USED:] = float("nan")
    found = launches.attend(own, context, table, seen, HEADS, 0.125)
    assert_close(found, exact, BOUNDS[dtype])
    assert not found[-1].any()


@TYPES
@pytest.mark.parametrize("frames, dim, width", [(50, WIDE, WIDE), (80, 96, 48)])
@pytest.mark.parametrize("used", [0, 1, USED, STORED])
def test_keys_and_values_of_stored_pages(dtype: torch.dtype, frames: int, dim: int, width: int, used: int) -> None:
    """``project_pages``; pages that the batch does not read are NaN."""
    draw, head_size = Draw("project", frames, used), HEAD_SIZE if width > HEAD_SIZE else 16
    seen, table = slots(draw, frames, max(used, 1)), turns(3000 + frames, head_size, DEVICE)
    seen.used.fill_(used)
    pages = stored(BLOCKS, 2 * PAGES, frames, dim)
    read = torch.cat([seen.page[:used], seen.page[STORED : STORED + used]])
    pages.write(1, read, draw.normal(BLOCKS, 2 * used, frames, dim))
    weight = StateRows.of((draw.normal(BLOCKS, 2 * width, dim) * dim**-0.5).to(dtype))
    bias = draw.normal(BLOCKS, 3 * width, dtype=dtype)[:, width:]  # as it lies beside the queries'
    found = launches.project_context(pages, seen, weight, bias, table)
    exact = project_context(pages, seen, weight, bias.float(), table)
    for half in range(2 if used else 0):
        rows = slice(half * STORED, half * STORED + used)
        assert_close(found[:, rows], exact[:, rows], BOUNDS[dtype])


@TYPES
@pytest.mark.parametrize("frames, dim", [(50, WIDE), (80, 256)])
def test_position_convolutions(dtype: torch.dtype, frames: int, dim: int) -> None:
    """``convolve_tiles``; the tiles' last inputs go to the second half of their pages' channels, and to nothing else."""
    draw, width, history = Draw("convolve", frames, dim), dim // 16, 30
    weight = (draw.normal(16, history + 1, width, width) * ((history + 1) * width) ** -0.5).to(dtype)
    conv = PackedConv(weight, draw.normal(dim, dtype=dtype))
    x, tails = draw.normal(TILES, frames, dim, dtype=dtype), stored(12, history, 2 * 16, width)
    previous, last, page = _places([-1, 0, 1, -1, 3, -1], [7, 0, 0, 4, 0, 6], [3, 8, 1, 0, 5, 2])
    own = tails[:, :, 16:]
    assert own.scales is not None and tails.scales is not None
    own.write(0, last[previous < 0], draw.normal(int((previous < 0).sum()), history, 16, width))
    exact_own = StateRows(own.values.clone(), scales_of(own).clone())
    exact = convolve(x.float(), exact_own, previous, last, page, PackedConv(conv.weight.float(), conv.bias.float()))
    found = launches.convolve(x, own, previous, last, page, conv)
    assert_close(found, exact, BOUNDS[dtype])
    assert_same_rows(own, exact_own, page)
    assert_untouched(scales_of(tails)[:, :, :16], scales_of(own)[[9, 10, 11]])


@TYPES
@pytest.mark.parametrize("dim", [1024, 320])
def test_the_residual_stream_advances(dtype: torch.dtype, dim: int) -> None:
    """``advance_rows``; the norm is also in the tile's page, and in no other."""
    draw = Draw("advance", dim)
    x, delta = 300.0 * draw.normal(TILES, 50, dim), draw.normal(TILES, 50, dim, dtype=dtype)
    gate, shift, scale = draw.normal(3, dim)
    (page,), pages = _places([3, 8, 1, 0, 5, 2]), stored(9, 50, dim)
    exact, exact_norm = advance(x, delta.float(), gate=gate, shift=shift, scale=scale)
    assert pages.scales is not None
    kinds: list[dict[str, Any]] = [{}, {"pages": pages, "page": page}]
    for places in kinds:
        stream, normed = launches.advance(x, delta, gate=gate, shift=shift, scale=scale, **places)
        assert_close(stream, exact, BOUNDS[torch.float32])
        assert_close(normed, exact_norm, BOUNDS[dtype])
    expected = stored(9, 50, dim)
    expected.write(0, page, normed)
    assert_same_rows(pages, expected, page)
    assert_untouched(scales_of(pages)[[4, 6, 7]])


def _places(*numbers: list[int]) -> list[Tensor]:
    return [torch.tensor(row, device=DEVICE) for row in numbers]
