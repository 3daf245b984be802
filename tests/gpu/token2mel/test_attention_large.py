"""Attention of the estimator for many rows, as the product launches it. Kernel: ``attend_pages_large``.

``tests/gpu/test_attention_cuda.py`` has other numbers of programs.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from tests.gpu.checks import Draw, assert_close, assert_untouched
from tests.gpu.token2mel.bench import BATCHES, STEP, FlowBench, attend, launch, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BLOCK = 2


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize(("batch", "dtype"), [*((batch, torch.float16) for batch in BATCHES), ("ragged", torch.bfloat16)], ids=str)
@pytest.mark.parametrize("half", [0, 1])
def test_attend_pages_large(half: int, batch: str, dtype: torch.dtype, left: int) -> None:
    draw, bench = Draw(half, batch, dtype, left), FlowBench("many", batch, dtype, left)
    launches, live = bench.half(half, block=BLOCK), bench.live
    launches._attention_programs = launches._attention_programs_alone if half == 0 else launches._attention_programs_beside
    memory = bench.pages.context[STEP, BLOCK, half]
    bench.store(draw, memory, 2)
    query, normed, pages = bench.rows(draw, launches.query), bench.rows(draw, launches.normed), bench.pages.context.clone()
    launch(launches._attend)
    attended, _ = attend(bench, memory, query, normed)
    assert_close(launches.attended[:live], attended, bench.bound)
    assert_untouched(bench.outside(bench.buffers.attended, half, live))
    assert same_bits(bench.pages.context, pages)
