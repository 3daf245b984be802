"""Stand-ins for what Triton's interpreter lacks: inline assembly, and a GPU that says how large it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.gpu.checks import INTERPRETED


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED:
        return
    from bistream.gpu import arithmetic  # noqa: PLC0415  (imports triton)
    from bistream.token2mel.cuda import kernels_attention_few, pieces_few  # noqa: PLC0415
    from tests.gpu import plain_instructions  # noqa: PLC0415

    gpu = SimpleNamespace(multi_processor_count=1, shared_memory_per_block_optin=99 * 1024, major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    for module in (arithmetic, kernels_attention_few):
        monkeypatch.setattr(module, "fast_inverse", plain_instructions.inverse)
    monkeypatch.setattr(pieces_few, "add_in_order", plain_instructions.add)
