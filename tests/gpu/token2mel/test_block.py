"""Everything between two attentions for many rows. Kernels: ``linear``, ``add_rows``, ``fold_query``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gpu.checks import INTERPRETED, Draw, assert_close, assert_same_rows, assert_untouched, scales_of

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import (
    CASES,
    STEP,
    FlowBench,
    TransformerBlock,
    by_head,
    copied,
    feed_forward,
    folded_query,
    kept_rows,
    launch,
    layer_norm,
    same_bits,
    values_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])
UNIT = 1


def added(block: TransformerBlock, attended: Tensor, x: Tensor) -> Tensor:
    """The residual that values, output projection and feed-forward add to x, float64."""
    out = torch.einsum("fhd,hdw->fw", values_of(block, attended), by_head(block.to_out.weight.T)) + block.to_out.bias.double()
    return out + feed_forward(block, x.double() + out)


def blocks_of(bench: FlowBench) -> tuple[TransformerBlock, TransformerBlock]:
    return bench.block(2 * UNIT), bench.block(2 * UNIT + 1)


@halves
@cases
def test_the_query_alone(batch: str, dtype: torch.dtype, half: int) -> None:
    """The first block of a unit."""
    bench = FlowBench("many", batch, dtype)
    launches, live, buffers = bench.half(half), bench.live, bench.buffers
    normed = bench.rows(Draw(batch, dtype, half), launches.normed)
    before, pages = buffers.normed.clone(), copied(bench.pages.context)
    block, _ = blocks_of(bench)
    launch(launches._query, block)
    assert_close(launches.query[:live], folded_query(block, normed), bench.bound)
    assert_untouched(bench.outside(buffers.query, half, bench.written(bench.tuning.query[0])), buffers.x)
    assert same_bits(buffers.normed, before)
    assert_same_rows(bench.pages.context, pages)


@halves
@cases
def test_from_one_attention_to_the_next(batch: str, dtype: torch.dtype, half: int) -> None:
    draw, bench = Draw(batch, dtype, half), FlowBench("many", batch, dtype)
    number = 2 * UNIT + 1  # the block whose input is kept
    launches, live, buffers = bench.half(half, block=number), bench.live, bench.buffers
    attended, x = bench.rows(draw, launches.attended), bench.rows(draw, launches.x).clone()
    pages = copied(bench.pages.context)
    block, following = blocks_of(bench)
    launch(launches._after_attention, block, following, launches.source)
    assert_close(launches.values[:live], values_of(block, attended).flatten(1), bench.bound)
    assert_close(launches.x[:live] - x, added(block, attended, x), bench.bound)
    normed = launches.normed[:live]
    assert_close(normed, layer_norm(launches.x[:live], following.norm_attention), bench.bound)
    assert_close(launches.query[:live], folded_query(following, normed), bench.bound)
    written = kept_rows(pages[STEP, number, half], normed, bench.sessions(2))
    pages.values[STEP, number, half], scales_of(pages)[STEP, number, half] = written.values, scales_of(written)
    assert_same_rows(bench.pages.context, pages)
    tiles = {
        "values": buffers.values, "hidden": buffers.hidden, "query": buffers.query, "add": torch.cat([buffers.x, buffers.normed], dim=1)
    }  # fmt: skip
    assert_untouched(*(bench.outside(rows, half, bench.written(getattr(bench.tuning, name)[0])) for name, rows in tiles.items()))
    assert_untouched(buffers.source)


@halves
@pytest.mark.parametrize("column", [None, 0, 256])
@cases
def test_the_end_of_a_unit(batch: str, dtype: torch.dtype, column: int | None, half: int) -> None:
    """The sum leaves in 16 bit, to ``source`` or a half of ``joined``; the stream stays as the attention's residual left it."""
    draw, bench = Draw(batch, dtype, column, half), FlowBench("many", batch, dtype)
    launches, live, buffers = bench.half(half), bench.live, bench.buffers
    attended, x = bench.rows(draw, launches.attended), bench.rows(draw, launches.x).clone()
    pages = copied(bench.pages.context)
    _, block = blocks_of(bench)
    target = launches.source if column is None else launches.joined[:, column : column + 256]
    launch(launches._after_attention, block, None, target)
    assert_close(target[:live].double() - x.double(), added(block, attended, x), 2 * bench.bound)
    whole = buffers.source if column is None else buffers.joined[:, column : column + 256]
    assert_untouched(bench.outside(whole, half, bench.written(bench.tuning.add[0])), buffers.query)
    if column is not None:
        assert_untouched(buffers.joined[:, 256 - column : 512 - column], buffers.source)
    assert_same_rows(bench.pages.context, pages)


def test_a_row_is_the_same_among_any_others() -> None:
    """Bit for bit."""
    results = []
    for batch in ("one chunk", "full"):
        bench = FlowBench("many", batch)
        launches, count = bench.half(0), 16
        for rows in (launches.attended, launches.x):
            bench.rows(Draw(batch), rows)
            bench.rows(Draw("the same"), rows, count)
        launch(launches._after_attention, *blocks_of(bench), launches.source)
        results.append((launches.x[:count], launches.query[:count]))
    (x, query), (other_x, other_query) = results
    assert same_bits(x, other_x) and same_bits(query, other_query)
