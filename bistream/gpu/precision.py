"""Float32 with and without TF32: process-wide flags let cuDNN and cuBLAS round the factors of float32 products to 10-bit mantissas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(tf32: bool = False) -> Iterator[None]:
    """Disable TF32 inside the block; the flags are restored after it. tf32: enable it instead, for networks that may be inexact.

    cuDNN does not time its algorithms for new shapes either.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = tf32, False, tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = before
