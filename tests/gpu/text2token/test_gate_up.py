"""Gate and up projection with RMSNorm and silu(gate) * up. Kernels: ``gate_up_small``, ``gate_up_large``, ``gate_up_many``."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_gate_up
from tests.gpu.checks import BOUNDS, Draw, assert_close, assert_untouched
from tests.gpu.text2token.bench import MEASURED_BEST, Tuning, cases, folded, fresh_bench, unpack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SMALL_TO_64 = dataclasses.replace(MEASURED_BEST, gate_up_small_rows=64)


def check(name: str, rows: int, kernel: object, tuning: Tuning = MEASURED_BEST) -> None:
    index = rows % 2
    draw = Draw(name, rows)
    bench = fresh_bench(draw, name, tuning)
    normed = bench.give_normed(draw, 2 * index + 1, rows, packed=rows <= tuning.gate_up_small_rows)
    assert bench.gate_up(index, rows) is kernel
    layer = bench.weights.layers[index]
    gate, up = (normed @ folded(layer.gate_up_weight, layer.post_norm).T).chunk(2, dim=1)
    found = bench.buffers.hidden[:rows]
    assert_close(unpack(found) if rows <= 16 else found, functional.silu(gate) * up, BOUNDS[torch.bfloat16])
    assert_untouched(bench.buffers.hidden[rows:])


@pytest.mark.parametrize(("name", "rows"), cases(1, 16))
def test_gate_up_small(name: str, rows: int) -> None:
    check(name, rows, kernels_gate_up.gate_up_small)


@pytest.mark.parametrize(("name", "rows"), cases(17, 64))
def test_gate_up_small_16_rows_at_a_time(name: str, rows: int) -> None:
    """``MANY``, which tunings other than the measured one can choose."""
    check(name, rows, kernels_gate_up.gate_up_small, SMALL_TO_64)


@pytest.mark.parametrize(("name", "rows"), cases(17, 64))
def test_gate_up_large(name: str, rows: int) -> None:
    check(name, rows, kernels_gate_up.gate_up_large)


@pytest.mark.parametrize(("name", "rows"), cases(65, 320))
def test_gate_up_many(name: str, rows: int) -> None:
    check(name, rows, kernels_gate_up.gate_up_many)
