"""Float32 without TF32: process-wide flags let cuDNN and cuBLAS round the factors of float32 products to 10-bit mantissas (TF32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(benchmark: bool = False) -> Iterator[None]:
    """Disable TF32 inside the block; the flags are restored after it. benchmark: cuDNN times its algorithms for every new shape."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = False, benchmark, False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = before
