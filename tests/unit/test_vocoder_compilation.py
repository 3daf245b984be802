"""The vocoder's kernels compile for every generation of GPU, at full size, within the shared memory that it has.

On a machine without a GPU, see ``test_kernel_compilation``:

    PYTHONPATH=build/triton_compiler .venv/bin/python -m pytest tests/unit/test_vocoder_compilation.py -m slow
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="the compiler alone is enough: see the module")

from triton.runtime import driver

from bistream.gpu.compile_ahead import wanted_by
from bistream.mel2wav.cuda import runner
from bistream.mel2wav.hop_plan import BUCKETS, Bucket
from tests.unit.test_graph_kernel_compilation import SHARED_KIB, AnyGpu, compiled
from tests.unit.test_kernel_compilation import no_gpu, vocoder

__all__ = ["no_gpu"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_they_compile_and_fit(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=40, shared_memory_per_block_optin=SHARED_KIB[capability] * 1024, major=capability // 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(runner, "BUCKETS", (min(BUCKETS, key=size_of), max(BUCKETS, key=size_of)))
    driver.set_active(AnyGpu(capability))
    wanted = wanted_by(vocoder(monkeypatch))
    assert len({one.name for one in wanted}) == 10
    for one in wanted:
        assert compiled(one).metadata.shared <= SHARED_KIB[capability] * 1024, one.name


def size_of(bucket: Bucket) -> int:
    return bucket.rows * bucket.frames
