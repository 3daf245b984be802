"""Convolutions of the estimator and of the encoder, and the end of a solver step.

Kernels: ``window_linear``, ``window_activate``, ``window_residual``, ``finish_step``.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from tests.gpu.checks import SUM_BOUND, Draw, assert_close, assert_untouched
from tests.gpu.token2mel.bench import BATCHES, CHUNK, STEP, FlowBench, WindowLinear, convolve, kept, launch, layer_norm, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CASES = [*((batch, torch.float16) for batch in BATCHES), ("ragged", torch.bfloat16)]
cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
halves = pytest.mark.parametrize("half", [0, 1])
TILE = 64  # of ManyEstimator
COLUMN = 320


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
    tails, pages = bench.pages.tail.clone(), bench.pages.context.clone()
    launch(launches._residual, launches.batch.units[unit], source, time)

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
    for columns, kept_rows in ((first, rows), (second, active)):
        expected[STEP, half][..., columns] = kept(tails[STEP, half][..., columns], kept_rows, sessions, CHUNK)
    assert same_bits(bench.pages.tail, expected)
    expected = pages.clone()
    expected[STEP, number, half] = kept(pages[STEP, number, half], normed, sessions, CHUNK)
    assert same_bits(bench.pages.context, expected)


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


@pytest.mark.parametrize("is_known", [False, True])
@cases
def test_finish_step(batch: str, dtype: torch.dtype, is_known: bool) -> None:
    draw, bench = Draw(batch, dtype, is_known), FlowBench("many", batch, dtype)
    live, frames, buffers, matching = bench.live, bench.frames, bench.buffers, bench.network.matching
    final, projection = matching.estimator.final_block.norm, matching.estimator.final_projection
    raws = [bench.rows(draw, buffers.raw[half * frames :]) for half in range(1 if is_known else 2)]
    guided, *free = (F.mish(layer_norm(raw, final)) @ projection.weight.double()[:, 0].T + projection.bias.double() for raw in raws)
    table = draw.normal(int(bench.arrays["frame_free"].max()) + 1, guided.shape[1])
    if is_known:
        bench.solver.free_velocities = table
        free = [table[bench.arrays["frame_free"][:live].long()].double()]
    before = bench.rows(draw, buffers.mel).clone()
    size = 0.125
    launch(bench.solver._finish_step, size, is_known)
    exact = (1.0 + matching.guidance) * guided - matching.guidance * free[0]
    mel = buffers.mel[:live]
    assert_close((mel - before) / size, exact, bench.bound)
    written = bench.written(16)
    bins = mel.shape[1]
    for half in range(2):
        assert torch.equal(buffers.inputs[half * frames :][:live, :bins], mel.to(dtype))
        assert_untouched(buffers.inputs[half * frames + written : (half + 1) * frames])
    assert_untouched(buffers.inputs[:, bins:], buffers.mel[written:])
