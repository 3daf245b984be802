"""Shared by the tests of single kernels: seeded inputs, poisoned memory, comparison with an exact result.

Kernels without Gluon and dependent launches also run on a CPU, in Triton's interpreter: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bistream.token2mel.state_rows import StateRows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# ||found - exact|| / ||exact|| of a result that was rounded once to this type
BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
SUM_BOUND = 1e-4  # of float32 sums of 16-bit products: the tensor cores truncate when they align summands
SENTINEL = -77  # an integer that no kernel computes


class Draw:
    """Random tensors of one test, seeded by its parameters."""

    def __init__(self, *parameters: object) -> None:
        self.generator = torch.Generator(DEVICE).manual_seed(zlib.crc32(repr(parameters).encode()))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=DEVICE).to(dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator, device=DEVICE)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """low .. high - 1."""
        return torch.randint(low, high, shape, generator=self.generator, device=DEVICE).to(dtype)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=DEVICE)


def poison(*tensors: Tensor) -> None:
    """NaN everywhere, ``SENTINEL`` in integers."""
    for tensor in tensors:
        tensor.fill_(math.nan if tensor.is_floating_point() else SENTINEL)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype, device=DEVICE)
    poison(tensor)
    return tensor


def untouched(tensor: Tensor) -> Tensor:
    """Mask of the elements of a poisoned tensor that were not written."""
    return tensor.isnan() if tensor.is_floating_point() else tensor == SENTINEL


def assert_untouched(*tensors: Tensor) -> None:
    for tensor in tensors:
        assert untouched(tensor).all(), f"{int((~untouched(tensor)).sum())} of {tensor.numel()} elements were written"


def assert_close(found: Tensor, exact: Tensor, bound: float) -> None:
    """All elements were written; the relative error as a whole is at most ``bound``, and that of each element at most ten times as much.

    An element's error is relative to its size plus the root mean square of all elements.
    """
    assert found.shape == exact.shape, f"{tuple(found.shape)} instead of {tuple(exact.shape)}"
    assert torch.isfinite(found).all(), f"{int((~torch.isfinite(found)).sum())} of {found.numel()} elements are not finite"
    difference, exact = found.double() - exact.double(), exact.double()
    error = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(exact).clamp(min=1e-30))
    assert error <= bound, f"relative error {error:.2e} is above {bound:.0e}"
    worst = float((difference.abs() / (exact.abs() + exact.square().mean().sqrt()).clamp(min=1e-30)).max())
    assert worst <= 10 * bound, f"the worst relative error of an element, {worst:.2e}, is above {10 * bound:.0e}"


def scales_of(rows: StateRows) -> Tensor:
    """Of rows that are stored as integers."""
    assert rows.scales is not None
    return rows.scales


def assert_same_rows(found: StateRows, expected: StateRows, places: Any = ...) -> None:
    """Scales agree to a rounding, and with them integers to one, where a number lies between two. Poison is the same in both."""
    torch.testing.assert_close(scales_of(found)[places], scales_of(expected)[places], rtol=1e-6, atol=0, equal_nan=True)
    apart = (found.values[places].int() - expected.values[places].int()).abs()
    assert int(apart.max()) <= 1 and float(apart.float().mean()) < 1e-2


@contextmanager
def settled() -> Iterator[None]:
    """Around a launch: a kernel with programmatic dependent launch reads its tables before its predecessor has ended."""
    if INTERPRETED:
        yield
        return
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()
