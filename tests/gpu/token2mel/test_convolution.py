"""Causal convolutions of the estimator, and the encoder's upsampling.

Kernels: ``window_few`` for few rows; ``window_linear``, which also upsamples, ``window_activate`` and ``window_residual`` for many.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.checks import INTERPRETED, SUM_BOUND, Draw, assert_close, assert_same_rows, assert_untouched, scales_of

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import (
    CASES,
    CHUNK,
    FEW_CASES,
    STEP,
    FlowBench,
    Source,
    WindowLinear,
    convolve,
    copied,
    kept,
    kept_rows,
    launch,
    layer_norm,
    same_bits,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
few_cases = pytest.mark.parametrize(("kind", "batch", "dtype"), FEW_CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])
TILE = 64  # rows of a program for many rows
COLUMN = 320  # of the tails


def check_few(
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
@few_cases
def test_window_few_of_rows_with_shortcut(kind: str, batch: str, dtype: torch.dtype, column: int, half: int) -> None:
    """The first convolution of all: 320 channels in 16 bit."""
    bench = FlowBench(kind, batch, dtype)
    residual, launches = bench.unit(0).residual, bench.half(half)
    rows = bench.rows(Draw(kind, batch, dtype, column, half), launches.inputs)
    check_few(bench, half, residual.block1.conv, Source(launches.inputs, "rows"), rows, residual.shortcut, False, column)


@halves
@few_cases
def test_window_few_of_normalised_rows(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The second convolution of a residual block: mish(LayerNorm) and the time before it."""
    bench = FlowBench(kind, batch, dtype)
    residual, launches, time = bench.unit(1).residual, bench.half(half), bench.network.matching.time_biases[STEP, 1]
    raw = bench.rows(Draw(kind, batch, dtype, half), launches.middle)
    rows = F.mish(layer_norm(raw, residual.block1.norm)) + time.double()
    check_few(bench, half, residual.block2.conv, Source(launches.middle, "raw", residual.block1.norm, time), rows, None, False, COLUMN)


@halves
@pytest.mark.parametrize("saves", [False, True])
@few_cases
def test_window_few_of_the_stream(kind: str, batch: str, dtype: torch.dtype, saves: bool, half: int) -> None:
    """Float32 rows; saved in 16 bit after the first unit, with a shortcut in the others."""
    bench = FlowBench(kind, batch, dtype)
    launches, residual = bench.half(half), bench.unit(1).residual
    rows = bench.rows(Draw(kind, batch, dtype, saves, half), launches.x).to(dtype)
    conv = bench.network.matching.estimator.down_conv if saves else residual.block1.conv
    check_few(bench, half, conv, Source(launches.x, "stream"), rows, None if saves else residual.shortcut, saves, COLUMN)


@halves
@few_cases
def test_window_few_of_the_stream_and_the_saved_rows(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The last unit: 512 channels, the second half of them from ``source``."""
    bench, draw = FlowBench(kind, batch, dtype), Draw(kind, batch, dtype, half)
    launches, residual = bench.half(half), bench.unit(2).residual
    rows = torch.cat([bench.rows(draw, launches.x).to(dtype), bench.rows(draw, launches.source)], dim=1)
    check_few(bench, half, residual.block1.conv, Source(launches.x, "stream"), rows, residual.shortcut, False, COLUMN)


@halves
@few_cases
def test_window_few_of_rows_without_shortcut(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    """The final block."""
    bench = FlowBench(kind, batch, dtype)
    launches, conv = bench.half(half), bench.network.matching.estimator.final_block.conv
    rows = bench.rows(Draw(kind, batch, dtype, half), launches.active)
    check_few(bench, half, conv, Source(launches.active, "rows"), rows, None, False, COLUMN)


@halves
@pytest.mark.parametrize("place", ["down", "up", "final"])
@cases
def test_window_linear(batch: str, dtype: torch.dtype, place: str, half: int) -> None:
    draw, bench = Draw(batch, dtype, place, half), FlowBench("many", batch, dtype)
    launches, live, buffers, sessions = bench.half(half, COLUMN), bench.live, bench.buffers, bench.sessions(2)
    estimator = bench.network.matching.estimator
    conv, source, out, name = {
        "down": (estimator.down_conv, launches.joined[:, 256:], launches.source, "source"),  # rows 512 apart
        "up": (estimator.up_conv, launches.source, launches.active, "active"),
        "final": (estimator.final_block.conv, launches.active, launches.raw, "raw"),
    }[place]
    rows, columns = bench.rows(draw, source), slice(COLUMN, COLUMN + 256)
    bench.store(draw, bench.pages.tail[STEP, half][..., columns], 2)
    expected = bench.pages.tail.clone()
    tail = expected[STEP, half][..., columns].clone()
    launch(launches._convolve, conv, source, out)
    assert_close(out[:live], convolve(conv, rows, tail, sessions), bench.bound)
    assert_untouched(bench.outside(getattr(buffers, name), half, bench.written(TILE)))
    expected[STEP, half][..., columns] = kept(tail, rows, sessions, CHUNK)
    assert same_bits(bench.pages.tail, expected)


@halves
@pytest.mark.parametrize("unit", [0, 1, 2])
@cases
def test_window_activate_and_window_residual(batch: str, dtype: torch.dtype, unit: int, half: int) -> None:
    """The residual block of the first unit (320 channels), of one in the middle (256) and of the last one (512)."""
    draw, bench = Draw(batch, dtype, unit, half), FlowBench("many", batch, dtype)
    number = 2 * unit  # block whose input is kept
    launches, live, buffers, sessions = bench.half(half, COLUMN, number), bench.live, bench.buffers, bench.sessions(2)
    residual, time = bench.unit(unit).residual, bench.network.matching.time_biases[STEP, unit]
    source = (launches.inputs, launches.source, launches.joined)[unit]
    rows, channels = bench.rows(draw, source), source.shape[1]
    first, second = slice(COLUMN, COLUMN + channels), slice(COLUMN + channels, COLUMN + channels + 256)
    bench.store(draw, bench.pages.tail[STEP, half], 2)
    tails, pages = bench.pages.tail.clone(), copied(bench.pages.context)
    launch(launches._residual, residual, bench.block(number), source, time)

    raw = convolve(residual.block1.conv, rows, tails[STEP, half][..., first], sessions)
    active = launches.active[:live]
    assert_close(active, F.mish(layer_norm(raw, residual.block1.norm)) + time.double(), bench.bound)
    raw = convolve(residual.block2.conv, active, tails[STEP, half][..., second], sessions)
    straight = rows.double() @ residual.shortcut.weight.double()[:, 0].T + residual.shortcut.bias.double()
    x, normed = launches.x[:live], launches.normed[:live]
    assert_close(x, F.mish(layer_norm(raw, residual.block2.norm)) + straight, SUM_BOUND)
    assert_close(normed, layer_norm(x, bench.block(number).norm_attention), bench.bound)
    written = bench.written(TILE)
    assert_untouched(*(bench.outside(tensor, half, written) for tensor in (buffers.active, buffers.x, buffers.normed)))
    expected = tails.clone()
    for columns, last_rows in ((first, rows), (second, active)):
        expected[STEP, half][..., columns] = kept(tails[STEP, half][..., columns], last_rows, sessions, CHUNK)
    assert same_bits(bench.pages.tail, expected)
    stored = kept_rows(pages[STEP, number, half], normed, sessions)
    pages.values[STEP, number, half], scales_of(pages)[STEP, number, half] = stored.values, scales_of(stored)
    assert_same_rows(bench.pages.context, pages)


def upsampled(conv: WindowLinear, tokens: Tensor, tail: Tensor, bench: FlowBench) -> Tensor:
    """As ``FlowEncoder.forward`` does it: every token twice, then a convolution over frames. float64 [tokens, 2 * width]."""
    outs = []
    for session in bench.sessions(1):
        given = torch.cat([tail[session.last_page], tokens[session.first : session.first + session.rows]]).double()
        frames = given.repeat_interleave(2, dim=0)
        windows = frames.unfold(0, conv.weight.shape[1], 1).transpose(1, 2).flatten(1)
        outs.append((windows @ conv.weight.double().flatten(1).T + conv.bias.double()).view(session.rows, -1))
    return torch.cat(outs)


@pytest.mark.parametrize("kind", ["few64", "few256", "many"])
@cases
def test_window_linear_upsamples(batch: str, dtype: torch.dtype, kind: str) -> None:
    draw, bench = Draw(batch, dtype, kind), FlowBench(kind, batch, dtype)
    tokens, encoder, live = bench.bucket.tokens, bench.solver.encoder, bench.live // 2
    rows = bench.rows(draw, bench.buffers.encoder_copy, live)
    bench.store(draw, bench.pages.upsample_tail, 1)
    tail = bench.pages.upsample_tail.clone()
    launch(encoder._upsample, tokens)
    found = bench.buffers.upsampled.view(tokens, -1)
    assert_close(found[:live], upsampled(bench.network.encoder.upsample, rows, tail, bench), bench.bound)
    assert_untouched(found[bench.written(bench.tuning.encoder_tile[0], live) :])
    assert same_bits(bench.pages.upsample_tail, kept(tail, rows, bench.sessions(1), 25))
