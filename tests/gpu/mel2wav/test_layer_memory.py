"""The memory of causal layers in one kernel against ``causal.layers.LayerMemory``, to the last bit: they copy.

Without a GPU, in Triton's interpreter: see ``tests/gpu/token2mel/test_dit_kernels.py``.
"""

from __future__ import annotations

import pytest
import torch

from bistream.mel2wav.causal.layers import LayerMemory
from tests.gpu.checks import DEVICE, INTERPRETED, Draw

if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from bistream.mel2wav.causal.graphs.cuda import layer_memory

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

LAYERS = [(6, 16, 1), (1, 16, 2), (50, 8, 4)]  # history, channels, rate
NEW = 5  # frames of every row, of which as many count as ``frames`` says


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block", [64, 2048])
def test_layers_see_and_keep_the_same(monkeypatch: pytest.MonkeyPatch, block: int, dtype: torch.dtype) -> None:
    """``extend_rows``; numbers of frames that are not contiguous, and one row that gets none."""
    monkeypatch.setattr(layer_memory, "_BLOCK", block)
    draw = Draw("memory", block)
    frames = torch.tensor([[3, 9], [0, 9], [NEW, 9]], device=DEVICE)[:, 0]
    stored = draw.normal(3, sum(history * channels for history, channels, _ in LAYERS), dtype=dtype)
    exact, found = LayerMemory(stored, frames, positions_dim=1), layer_memory.KernelLayerMemory(stored, frames)
    for history, channels, rate in LAYERS:
        x = draw.normal(3, NEW * rate, channels, dtype=dtype)
        assert torch.equal(found.extend(x, history, rate), exact.extend(x, history, rate))
    assert torch.equal(found.kept(), exact.kept())
