"""Feed-forward of a transformer block for few rows. Kernel: ``feed_forward_few``."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.checks import INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import FEW_CASES, FlowBench, feed_forward, launch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BLOCK = 3


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("kind", "batch", "dtype"), FEW_CASES, ids=str)
def test_feed_forward_few(kind: str, batch: str, dtype: torch.dtype, half: int) -> None:
    draw, bench = Draw(kind, batch, dtype, half), FlowBench(kind, batch, dtype)
    launches, block, live = bench.half(half), bench.block(BLOCK), bench.live
    x, before = bench.rows(draw, launches.odd), bench.rows(draw, launches.x).clone()
    launch(launches._feed_forward, block)
    assert_close(launches.x[:live].double() - before.double() - x.double(), feed_forward(block, x), bench.bound)
    assert_untouched(bench.outside(bench.buffers.x, half, live), bench.outside(bench.buffers.odd, half, live))
