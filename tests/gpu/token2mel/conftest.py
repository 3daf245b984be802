"""Stand-ins for what Triton's interpreter lacks: a GPU that says how large it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.gpu.checks import INTERPRETED


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED:
        return
    gpu = SimpleNamespace(multi_processor_count=1, shared_memory_per_block_optin=99 * 1024, major=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
