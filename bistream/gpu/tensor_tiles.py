"""Tile descriptors for the Tensor Memory Accelerator (TMA, Hopper). Imports Triton: only for the stages' ``cuda`` folders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


def tile_descriptor(matrix: Tensor, rows: int, columns: int = 64) -> Any:
    """Descriptor of [rows, columns] tiles, columns a multiple of 64, of a 16-bit matrix whose rows are contiguous."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], _TYPES[matrix.dtype])
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
