"""Down projection onto the residual stream, in eight chunks. Kernels: ``down_small``, ``down_many``."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_down
from tests.gpu.checks import Draw
from tests.gpu.text2token.bench import MEASURED_BEST, Tuning, cases, fresh_bench, pack, rounded

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def check(name: str, rows: int, index: int, kernel: object, tuning: Tuning = MEASURED_BEST) -> None:
    draw = Draw(name, rows, index)
    bench = fresh_bench(draw, name, tuning)
    hidden = draw.normal(rows, bench.config.intermediate_size, dtype=torch.bfloat16)
    bench.buffers.hidden[:rows] = pack(hidden) if rows <= 16 else hidden
    x = bench.give_residual(draw, rows)
    assert bench.down(index, rows) is kernel
    exact = x + hidden.double() @ rounded(bench.weights.layers[index].down_weight).T
    is_last = index + 1 == len(bench.weights.layers)
    # the head follows the last layer and takes packed rows only from down_small
    packed = rows <= 16 or (rows <= tuning.qkv_small_rows and not is_last)
    bench.check_residual(2 * index + 2, rows, exact, packed)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("name", "rows"), cases(1, 16))
def test_down_small(name: str, rows: int, index: int) -> None:
    check(name, rows, index, kernels_down.down_small)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("name", "rows"), cases(17, 320))
def test_down_many(name: str, rows: int, index: int) -> None:
    check(name, rows, index, kernels_down.down_many)


@pytest.mark.parametrize("patience", [0, 1])
@pytest.mark.parametrize("rows", [17, 64, 65, 200])
def test_down_many_where_programs_do_not_wait(rows: int, patience: int) -> None:
    """A program that times out leaves its share of the sum to the last one to arrive."""
    check("real", rows, 0, kernels_down.down_many, dataclasses.replace(MEASURED_BEST, down_patience=patience))
