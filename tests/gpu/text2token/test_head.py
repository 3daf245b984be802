"""Final RMSNorm and speech head. Kernels: ``head_small``, ``head_large``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_head
from tests.gpu.checks import SUM_BOUND, Draw, assert_close, assert_untouched
from tests.gpu.text2token.bench import cases, folded, fresh_bench

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def check(name: str, rows: int, kernel: object) -> None:
    draw = Draw(name, rows)
    bench = fresh_bench(draw, name)
    normed = bench.give_normed(draw, len(bench.buffers.squares) - 1, rows, packed=rows <= 16)
    assert bench.head(rows) is kernel
    weights, logits = bench.weights, bench.buffers.logits
    exact = normed @ folded(weights.head_weight, weights.final_norm).T + weights.head_bias.double()
    assert_close(logits[:rows, : bench.vocab], exact, SUM_BOUND)
    assert_untouched(logits[:rows, bench.vocab :], logits[rows:])


@pytest.mark.parametrize(("name", "rows"), cases(1, 16))
def test_head_small(name: str, rows: int) -> None:
    check(name, rows, kernels_head.head_small)


@pytest.mark.parametrize(("name", "rows"), cases(17, 320))
def test_head_large(name: str, rows: int) -> None:
    check(name, rows, kernels_head.head_large)
