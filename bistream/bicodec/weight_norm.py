"""Weight-normalised kernels in files: two spellings of the pair (g, v), and the kernel g v / |v| itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

GAIN, DIRECTION = "weight_g", "weight_v"
_NEW_NAMES = {"parametrizations.weight.original0": GAIN, "parametrizations.weight.original1": DIRECTION}  # PyTorch 2's


def old_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names ``weight_g`` and ``weight_v``."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in state.items():
        new = next((name for name in _NEW_NAMES if key.endswith(f".{name}")), None)
        renamed[key if new is None else key.removesuffix(new) + _NEW_NAMES[new]] = tensor
    return renamed


def fold(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Kernels in place of pairs, float32. The norm is taken over the axes along which there is one gain.

    All are copies: tensors of a file may be mapped from it, and would change with it.
    """
    folded: dict[str, Tensor] = {}
    for key, tensor in state.items():
        module, _, name = key.rpartition(".")
        if name == GAIN:
            continue
        if name == DIRECTION:
            gain, direction = state[f"{module}.{GAIN}"].float(), tensor.float()
            axes = [axis for axis, size in enumerate(gain.shape) if size == 1]
            folded[f"{module}.weight"] = direction * (gain / torch.linalg.vector_norm(direction, dim=axes, keepdim=True))
        else:
            folded[key] = tensor.to(torch.float32, copy=True)
    return folded
