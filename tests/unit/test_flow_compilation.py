"""The kernels of CosyVoice2's flow compile for every generation of GPU from 8.0 on, at full size, within the shared memory that it has.

On a machine without a GPU, see ``test_kernel_compilation``:

    PYTHONPATH=build/triton_compiler .venv/bin/python -m pytest tests/unit/test_flow_compilation.py -m slow
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="the compiler alone is enough: see the module")

from triton.runtime import driver

from bistream.gpu.compile_ahead import wanted_by
from tests.unit.test_graph_kernel_compilation import SHARED_KIB, AnyGpu, compiled
from tests.unit.test_kernel_compilation import flow, no_gpu

__all__ = ["no_gpu"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 120])
def test_they_compile_and_fit(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        multi_processor_count=40, shared_memory_per_block_optin=SHARED_KIB[capability] * 1024, major=capability // 10, minor=capability % 10
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    driver.set_active(AnyGpu(capability))
    wanted = wanted_by(flow(monkeypatch))
    assert {one.name for one in wanted} >= {"query_few", "attend_few", "join_few", "feed_forward_few", "window_few"}
    for one in wanted:
        if one.name.endswith("_few"):
            assert compiled(one).metadata.shared <= SHARED_KIB[capability] * 1024, one.name
