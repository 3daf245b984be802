"""Everything between two attentions for many rows. Kernel: ``block_rows``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from tests.gpu.checks import Draw, assert_close, assert_untouched
from tests.gpu.token2mel.bench import (
    CASES,
    CHUNK,
    STEP,
    FlowBench,
    TransformerBlock,
    by_head,
    feed_forward,
    folded_query,
    kept,
    launch,
    layer_norm,
    same_bits,
    values_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])
TILE = 64
UNIT = 1


def added(block: TransformerBlock, attended: Tensor, x: Tensor) -> Tensor:
    """The residual that values, output projection and feed-forward add to x, float64."""
    out = torch.einsum("fhd,hdw->fw", values_of(block, attended), by_head(block.to_out.weight.T)) + block.to_out.bias.double()
    return out + feed_forward(block, x.double() + out)


@halves
@pytest.mark.parametrize("parts", [1, 2, 4])
@cases
def test_the_query_alone(batch: str, dtype: torch.dtype, parts: int, half: int) -> None:
    """The first block of a unit; its heads may be shared by several programs."""
    bench = FlowBench("many", batch, dtype)
    launches, live, buffers = bench.half(half), bench.live, bench.buffers
    launches._query_parts = parts
    normed = bench.rows(Draw(batch, dtype, parts, half), launches.normed)
    before, pages = buffers.normed.clone(), bench.pages.context.clone()
    weights = launches.batch.units[UNIT].blocks[0]
    launch(launches._between, None, weights, launches._normed_tile)
    assert_close(launches.query[:live], folded_query(weights.module, normed), bench.bound)
    assert_untouched(bench.outside(buffers.query, half, bench.written(TILE)), buffers.x)
    assert same_bits(buffers.normed, before) and same_bits(bench.pages.context, pages)


@halves
@cases
def test_from_one_attention_to_the_next(batch: str, dtype: torch.dtype, half: int) -> None:
    draw, bench = Draw(batch, dtype, half), FlowBench("many", batch, dtype)
    number = 2 * UNIT + 1  # the block whose input is kept
    launches, live, buffers = bench.half(half, block=number), bench.live, bench.buffers
    attended, x = bench.rows(draw, launches.attended), bench.rows(draw, launches.x).clone()
    pages = bench.pages.context.clone()
    weights, following = launches.batch.units[UNIT].blocks
    launch(launches._between, weights, following, launches._normed_tile)
    exact = added(weights.module, attended, x)
    assert_close(launches.x[:live] - x, exact, bench.bound)
    normed = launches.normed[:live]
    assert_close(normed, layer_norm(launches.x[:live], following.module.norm_attention), bench.bound)
    assert_close(launches.query[:live], folded_query(following.module, normed), bench.bound)
    expected = pages.clone()
    expected[STEP, number, half] = kept(pages[STEP, number, half], normed, bench.sessions(2), CHUNK)
    assert same_bits(bench.pages.context, expected)
    rows = bench.written(TILE)
    assert_untouched(*(bench.outside(tensor, half, rows) for tensor in (buffers.x, buffers.normed, buffers.query)))


@halves
@pytest.mark.parametrize("column", [None, 0, 256])
@cases
def test_the_end_of_a_unit(batch: str, dtype: torch.dtype, column: int | None, half: int) -> None:
    """The sum leaves in 16 bit, to ``source`` or a half of ``joined``; the stream stays as it was."""
    draw, bench = Draw(batch, dtype, column, half), FlowBench("many", batch, dtype)
    launches, live, buffers = bench.half(half), bench.live, bench.buffers
    attended, x = bench.rows(draw, launches.attended), bench.rows(draw, launches.x).clone()
    before, pages = buffers.x.clone(), bench.pages.context.clone()
    weights = launches.batch.units[UNIT].blocks[1]
    tile = launches._source_tile if column is None else launches._joined_tiles[column // 256]
    launch(launches._between, weights, None, tile)
    whole = buffers.source if column is None else buffers.joined[:, column : column + 256]
    target = whole[half * bench.frames :]
    assert_close(target[:live].double() - x.double(), added(weights.module, attended, x), 2 * bench.bound)
    assert_untouched(bench.outside(whole, half, bench.written(TILE)), buffers.normed, buffers.query)
    if column is not None:
        assert_untouched(buffers.joined[:, 256 - column : 512 - column], buffers.source)
    assert same_bits(buffers.x, before) and same_bits(bench.pages.context, pages)
