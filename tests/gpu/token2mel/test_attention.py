"""Attention of the estimator. Few rows: ``query_few``, ``attend_few``, ``join_few``; many rows: ``widen_pages``, ``attend_pages``.

Queries of many rows: ``test_block``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.checks import INTERPRETED, SUM_BOUND, Draw, assert_close, assert_same_rows, assert_untouched, scales_of

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import (
    BATCHES,
    CASES,
    FEW_CASES,
    FEW_KINDS,
    STEP,
    ChunkItemField,
    FlowBench,
    attend,
    by_head,
    copied,
    folded_query,
    kept_rows,
    launch,
    layer_norm,
    same_bits,
    values_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BLOCK = 3

few_cases = pytest.mark.parametrize(("kind", "batch", "dtype"), FEW_CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])


@halves
@pytest.mark.parametrize("first", [False, True])
@few_cases
def test_query_few(kind: str, batch: str, dtype: torch.dtype, first: bool, half: int) -> None:
    draw, bench = Draw(kind, batch, dtype, first, half), FlowBench(kind, batch, dtype)
    launches, block, live, buffers = bench.half(half, block=BLOCK), bench.block(BLOCK), bench.live, bench.buffers
    residual = bench.unit(BLOCK // 2).residual if first else None
    x = bench.rows(draw, launches.shortcut if first else launches.x).double()
    if residual is not None:
        x = x + F.mish(layer_norm(bench.rows(draw, launches.active), residual.block2.norm))
    memory, pages = bench.store_context(draw, BLOCK, half), copied(bench.pages.context)
    launch(launches._query, block, residual)
    assert_close(launches.odd[:live], x + block.to_out.bias.double(), SUM_BOUND)
    normed = launches.normed[:live]
    assert_close(normed, layer_norm(x, block.norm_attention), bench.bound)
    assert_close(launches.query[:live], folded_query(block, normed), bench.bound)
    written = kept_rows(pages[STEP, BLOCK, half], normed, bench.sessions(2))
    assert_same_rows(bench.pages.context[STEP, BLOCK, half], written)
    pages.values[STEP, BLOCK, half], scales_of(pages)[STEP, BLOCK, half] = written.values, scales_of(written)
    assert_same_rows(bench.pages.context, pages)
    read = bench.read_pages()
    assert same_bits(launches.widened[: len(read)], memory[read])
    assert_untouched(launches.widened[len(read) :], bench.buffers.widened[1 - half])
    assert_untouched(bench.outside(buffers.odd, half, live), bench.outside(buffers.normed, half, live))
    assert_untouched(bench.outside(buffers.query, half, bench.written(bench.few.rows)))


def add_attention(bench: FlowBench, draw: Draw, half: int) -> None:
    """Checks the residual stream that ``attend_few`` and ``join_few`` write."""
    launches, block, live, buffers = bench.half(half, block=BLOCK), bench.block(BLOCK), bench.live, bench.buffers
    memory, read = bench.store_context(draw, BLOCK, half), bench.read_pages()
    launches.widened[: len(read)] = memory[read]
    query, normed = bench.rows(draw, launches.query), bench.rows(draw, launches.normed)
    before = bench.rows(draw, launches.odd).clone()
    launch(launches._attend, block)
    output = by_head(block.to_out.weight.T)  # [heads, size, width]
    added = launches.odd[:live] - before
    attended, _ = attend(bench, memory, query, normed)
    assert_close(added, torch.einsum("fhd,hdw->fw", values_of(block, attended), output), bench.bound)
    assert not launches.x[:live].any(), "the other buffer of the stream is cleared"
    assert_untouched(bench.outside(buffers.odd, half, live), bench.outside(buffers.x, half, live))
    if bench.few.key_splits > 1:
        check_splits(bench, half, query, normed, memory, added)
    else:
        assert_untouched(buffers.parts, buffers.lse)


def check_splits(bench: FlowBench, half: int, query: Tensor, normed: Tensor, memory: Tensor, added: Tensor) -> None:
    """The parts of ``attend_few`` are those of its splits, and ``join_few`` adds their combined result."""
    launches, block, live, most = bench.half(half), bench.block(BLOCK), bench.live, bench.few.key_splits
    splits = int(bench.arrays.chunk_item[0, ChunkItemField.SPLITS])
    parts = torch.unflatten(launches.parts, 0, (most, bench.frames))
    lse = torch.unflatten(launches.lse, 0, (most, bench.frames))
    sums = torch.full((most, live, lse.shape[-1]), -torch.inf, dtype=torch.float64, device=query.device)
    values = torch.zeros(*sums.shape, parts.shape[-1], dtype=torch.float64, device=query.device)
    for split in range(splits):
        attended, exact_sums = attend(bench, memory, query, normed, split, splits)
        has_keys = exact_sums[:, 0].isfinite()
        assert_untouched(parts[split, :live][~has_keys], lse[split, :live][~has_keys], parts[split, live:], lse[split, live:])
        if has_keys.any():
            assert_close(lse[split, :live][has_keys], exact_sums[has_keys], SUM_BOUND)
            assert_close(parts[split, :live][has_keys], values_of(block, attended)[has_keys], bench.bound)
        sums[split, has_keys] = lse[split, :live][has_keys].double()
        values[split, has_keys] = parts[split, :live][has_keys].double()
    assert_untouched(parts[splits:], lse[splits:])
    shares = torch.softmax(sums * torch.log(torch.tensor(2.0, dtype=torch.float64)), dim=0)
    joined = (values * shares[..., None]).sum(0)
    assert_close(added, torch.einsum("fhd,hdw->fw", joined, by_head(block.to_out.weight.T)), bench.bound)


@halves
@few_cases
def test_attend_few_and_join_few(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """One split in bucket few384, where the output projection is part of ``attend_few``; up to two or eight in the others."""
    add_attention(FlowBench(kind, batch, dtype), Draw(kind, batch, dtype, half), half)


@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("batch", sorted(BATCHES))
@pytest.mark.parametrize("kind", FEW_KINDS)
def test_attend_few_with_bounded_context(kind: str, batch: str, left: int) -> None:
    add_attention(FlowBench(kind, batch, left=left), Draw(kind, batch, left), 1)


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
@halves
@pytest.mark.parametrize("on_hopper", [False, True])
def test_attend_pages(on_hopper: bool, half: int, batch: str, dtype: torch.dtype, left: int) -> None:
    draw, bench = Draw(half, batch, dtype, left), FlowBench("many", batch, dtype, left)
    launches, live = bench.half(half, block=BLOCK), bench.live
    if on_hopper and not launches.batch.hopper_programs:
        pytest.skip("needs Hopper, and the version of Triton whose Gluon it is written for")
    if not on_hopper:
        launches.batch = replace(launches.batch, hopper_programs=0)
    memory, read = bench.store_context(draw, BLOCK, half), bench.read_pages()
    query, normed, pages = bench.rows(draw, launches.query), bench.rows(draw, launches.normed), copied(bench.pages.context)
    launch(launches._widen)
    assert same_bits(launches.widened[: len(read)], memory[read])
    assert_untouched(launches.widened[len(read) :], bench.buffers.widened[1 - half])
    launch(launches._attend)
    attended, _ = attend(bench, memory, query, normed)
    assert_close(launches.attended[:live], attended, bench.bound)
    assert_untouched(bench.outside(bench.buffers.attended, half, live))
    assert_same_rows(bench.pages.context, pages)
