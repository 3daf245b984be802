"""Guidance and the end of a solver step: the last projection and the update of the mel. Kernel: ``finish_step``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.checks import INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import CASES, FlowBench, launch, layer_norm

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
def test_finish_step(batch: str, dtype: torch.dtype, is_known: bool) -> None:
    draw, bench = Draw(batch, dtype, is_known), FlowBench("many", batch, dtype)
    live, frames, buffers, matching = bench.live, bench.frames, bench.buffers, bench.network.matching
    final, projection = matching.estimator.final_block.norm, matching.estimator.final_projection
    raws = [bench.rows(draw, buffers.raw[half * frames :]) for half in range(1 if is_known else 2)]
    guided, *free = (F.mish(layer_norm(raw, final)) @ projection.weight.double()[:, 0].T + projection.bias.double() for raw in raws)
    table = draw.normal(int(bench.arrays.frame_free.max()) + 1, guided.shape[1])
    if is_known:
        bench.solver.free_velocities = table
        free = [table[bench.arrays.frame_free[:live].long()].double()]
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
