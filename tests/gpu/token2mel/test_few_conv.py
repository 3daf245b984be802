"""Causal convolutions of the estimator for few rows. Kernel: ``window_few``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from tests.gpu.checks import SUM_BOUND, Draw, assert_close, assert_untouched
from tests.gpu.token2mel.bench import BATCHES, CHUNK, STEP, FlowBench, Source, WindowLinear, convolve, kept, launch, layer_norm, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

FEW = ("few64", "few128", "few256", "few384")
CASES = [(kind, batch, torch.float16) for kind in FEW for batch in BATCHES] + [(kind, "ragged", torch.bfloat16) for kind in FEW]
COLUMN = 320  # of the tails


cases = pytest.mark.parametrize(("kind", "batch", "dtype"), CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])


def check(
    bench: FlowBench, half: int, conv: WindowLinear, source: Source, rows: Tensor, shortcut: WindowLinear | None, saves: bool, column: int
) -> None:
    """rows: what the convolution reads, [live, channels], in 16 bit or, where the kernel computes it, float64."""
    launches, live, buffers, sessions = bench.half(half, column), bench.live, bench.buffers, bench.sessions(2)
    channels, is_computed = rows.shape[1], rows.dtype == torch.float64
    draw = Draw(half, channels)
    columns = slice(column, column + channels)
    tail = bench.pages.tail[STEP, half][..., columns]
    bench.store(draw, tail, 2)
    tails = bench.pages.tail.clone()
    out = launches.active if source.rows.data_ptr() != launches.active.data_ptr() else launches.raw
    source_before = buffers.source.clone()
    launch(launches._convolve, conv, source, out, shortcut, buffers.source if saves else None)
    exact = convolve(conv, rows, tails[STEP, half][..., columns], sessions)
    assert_close(out[:live], exact, bench.bound)
    assert_untouched(out[live:])
    if shortcut is not None:
        straight = rows.double() @ shortcut.weight.double()[:, 0].T + shortcut.bias.double()
        assert_close(launches.shortcut[:live], straight, SUM_BOUND)
    assert_untouched(launches.shortcut[live if shortcut is not None else 0 :])
    if saves:
        source_before[half * bench.frames :][:live] = rows
    assert same_bits(buffers.source, source_before)
    expected = tails.clone()
    expected[STEP, half][..., columns] = kept(tails[STEP, half][..., columns], rows, sessions, CHUNK)
    found = bench.pages.tail
    if is_computed:
        written = expected.isnan() != tails.isnan()
        if written.any():
            assert_close(found[written], expected[written], bench.bound)
        found = found.masked_fill(written, torch.nan)
        expected = expected.masked_fill(written, torch.nan)
    assert same_bits(found, expected)


@halves
@pytest.mark.parametrize("column", [0, COLUMN])
@cases
def test_rows_with_shortcut(kind: str, batch: str, dtype: torch.dtype, column: int, half: int) -> None:
    """The first convolution of all: 320 channels in 16 bit."""
    bench = FlowBench(kind, batch, dtype)
    residual, launches = bench.unit(0).residual, bench.half(half)
    rows = bench.rows(Draw(kind, batch, dtype, column, half), launches.inputs)
    check(bench, half, residual.block1.conv, Source(launches.inputs, "rows"), rows, residual.shortcut, False, column)


@halves
@cases
def test_normalised_rows(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The second convolution of a residual block: mish(LayerNorm) and the time before it."""
    bench = FlowBench(kind, batch, dtype)
    residual, launches, time = bench.unit(1).residual, bench.half(half), bench.network.matching.time_biases[STEP, 1]
    raw = bench.rows(Draw(kind, batch, dtype, half), launches.middle)
    rows = F.mish(layer_norm(raw, residual.block1.norm)) + time.double()
    check(bench, half, residual.block2.conv, Source(launches.middle, "raw", residual.block1.norm, time), rows, None, False, COLUMN)


@halves
@pytest.mark.parametrize("saves", [False, True])
@cases
def test_the_stream(kind: str, batch: str, dtype: torch.dtype, saves: bool, half: int) -> None:
    """Float32 rows; saved in 16 bit behind the first unit, with a shortcut in the others."""
    bench = FlowBench(kind, batch, dtype)
    launches, residual = bench.half(half), bench.unit(1).residual
    rows = bench.rows(Draw(kind, batch, dtype, saves, half), launches.x).to(dtype)
    conv = bench.network.matching.estimator.down_conv if saves else residual.block1.conv
    check(bench, half, conv, Source(launches.x, "stream"), rows, None if saves else residual.shortcut, saves, COLUMN)


@halves
@cases
def test_the_stream_beside_what_was_saved(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The last unit: 512 channels, the second half of them from ``source``."""
    bench, draw = FlowBench(kind, batch, dtype), Draw(kind, batch, dtype, half)
    launches, residual = bench.half(half), bench.unit(2).residual
    rows = torch.cat([bench.rows(draw, launches.x).to(dtype), bench.rows(draw, launches.source)], dim=1)
    check(bench, half, residual.block1.conv, Source(launches.x, "stream"), rows, residual.shortcut, False, COLUMN)


@halves
@cases
def test_rows_without_shortcut(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The final block."""
    bench = FlowBench(kind, batch, dtype)
    launches, conv = bench.half(half), bench.network.matching.estimator.final_block.conv
    rows = bench.rows(Draw(kind, batch, dtype, half), launches.active)
    check(bench, half, conv, Source(launches.active, "rows"), rows, None, False, COLUMN)
