"""Matrices as tiles for the tensor copy engine (Hopper)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_TYPES = {"torch.float16": gl.float16, "torch.bfloat16": gl.bfloat16, "torch.float32": gl.float32}


def tile_descriptor(matrix: Tensor, rows: int, columns: int) -> Any:
    """Descriptor of [rows, columns] tiles of a matrix whose rows are contiguous."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], _TYPES[str(matrix.dtype)])
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
