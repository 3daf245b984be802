"""Output projection onto the residual stream. Kernels: ``output_small``, ``output_many``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_output
from tests.gpu.checks import Draw
from tests.gpu.text2token.bench import cases, fresh_bench, pack, rounded

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def check(name: str, rows: int, index: int, kernel: object) -> None:
    draw = Draw(name, rows, index)
    bench = fresh_bench(draw, name)
    attended = draw.normal(rows, bench.config.hidden_size, dtype=torch.bfloat16)
    bench.buffers.attended[:rows] = pack(attended) if rows <= bench.tuning.output_small_rows else attended
    x = bench.give_residual(draw, rows)
    assert bench.output(index, rows) is kernel
    exact = x + attended.double() @ rounded(bench.weights.layers[index].output_weight).T
    bench.check_residual(2 * index + 1, rows, exact, packed=rows <= bench.tuning.gate_up_small_rows)


@pytest.mark.parametrize(("name", "rows"), cases(1, 64))
def test_output_small(name: str, rows: int) -> None:
    check(name, rows, rows % 2, kernels_output.output_small)


@pytest.mark.parametrize(("name", "rows"), cases(65, 320))
def test_output_many(name: str, rows: int) -> None:
    check(name, rows, rows % 2, kernels_output.output_many)
