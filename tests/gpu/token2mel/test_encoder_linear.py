"""Linear layers of the encoder. Kernels: ``norm_linear``, ``norm_rows``, ``linear``, ``residual_linear``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.checks import INTERPRETED, SUM_BOUND, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import CASES, FlowBench, encoder_layer, launch, layer_norm, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
rates = pytest.mark.parametrize("ratio", [1, 2])  # rows per token
kinds = pytest.mark.parametrize("kind", ["few64", "few256", "many"])


@pytest.mark.parametrize("activation", ["", "silu"])
@rates
@kinds
@cases
def test_linear_after_layer_norm(batch: str, dtype: torch.dtype, kind: str, ratio: int, activation: str) -> None:
    """``norm_linear`` for few rows; for many ``norm_rows`` and ``linear``."""
    draw, bench = Draw(batch, dtype, kind, ratio, activation), FlowBench(kind, batch, dtype)
    live, rows, buffers, layer = bench.live * ratio // 2, bench.bucket.tokens * ratio, bench.buffers, encoder_layer(bench, ratio)
    norm, linear = (layer.norm_feed_forward, layer.linear_in) if activation else (layer.norm_attention, layer.attention.to_qkv)
    out = buffers.encoder_hidden if activation else buffers.qkv
    x = bench.rows(draw, buffers.encoder_x, live)
    launch(bench.solver.encoder._norm_linear, norm, linear, activation, out, bench.at_rate(ratio).live, rows)
    normed, is_many = layer_norm(x, norm), kind == "many"
    if is_many:
        assert_close(buffers.encoder_copy[:live], normed, bench.bound)
        assert_untouched(buffers.encoder_copy[bench.written(8, live) :])
    else:
        assert_untouched(buffers.encoder_copy)
    exact = normed @ linear.weight.double().T + linear.bias.double()
    assert_close(out[:live], F.silu(exact) if activation else exact, bench.bound)
    tile = bench.tuning.encoder_tile[0]
    assert_untouched(out[bench.written(tile if is_many else min(tile, 32), live) :])


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("place", ["attention", "feed-forward"])
@rates
@kinds
@cases
def test_residual_linear(batch: str, dtype: torch.dtype, kind: str, ratio: int, place: str, is_last: bool) -> None:
    draw, bench = Draw(batch, dtype, kind, ratio, place, is_last), FlowBench(kind, batch, dtype)
    live, rows, buffers, layer = bench.live * ratio // 2, bench.bucket.tokens * ratio, bench.buffers, encoder_layer(bench, ratio)
    linear, given = (
        (layer.attention.to_out, buffers.encoder_attended) if place == "attention" else (layer.linear_out, buffers.encoder_hidden)
    )
    a = bench.rows(draw, given, live)
    x = bench.rows(draw, buffers.encoder_x, live).clone()
    before = buffers.encoder_x.clone()
    launch(bench.solver.encoder._onto_residual, linear, given, bench.at_rate(ratio).live, rows, is_last)
    exact = x.double() + a.double() @ linear.weight.double().T + linear.bias.double()
    written = bench.written(bench.tuning.encoder_tile[0], live)
    if is_last:
        assert_close(buffers.encoder_copy[:live], exact, bench.bound)
        assert_untouched(buffers.encoder_copy[written:])
        assert same_bits(buffers.encoder_x, before)
    else:
        assert_close(buffers.encoder_x[:live], exact, SUM_BOUND)
        assert_untouched(buffers.encoder_copy, buffers.encoder_x[written:])
