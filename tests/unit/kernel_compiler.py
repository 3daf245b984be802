"""Triton's compiler on a machine without a GPU, which it needs none: launches of the product itself, on CPU tensors.

    pip install --no-deps --target build/triton_compiler triton==3.6.0
    PYTHONPATH=build/triton_compiler .venv/bin/python -m pytest tests/unit/test_*_compilation.py -m slow

Import it behind ``pytest.importorskip("triton")``.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bistream.gpu.compile_ahead import Wanted, wanted_by
from bistream.gpu.compile_worker import Target

CPU = torch.device("cpu")
# shared memory of a block, KiB, by compute capability (CUDA C++ Programming Guide, technical specifications per compute capability)
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


class Nothing:
    """A stream, an event."""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...


class AnyGpu(Target):
    """As much of Triton's driver as a launch asks for before it compiles. Each has a number of its own, by which Triton keeps kernels."""

    numbers = itertools.count()

    def __init__(self, capability: int) -> None:
        super().__init__(GPUTarget("cuda", capability, 32))
        self._number = next(self.numbers)

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU


def simulate(capability: int, patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Launches compile for this GPU, and streams are stand-ins. cache: empty, where compiled kernels go."""
    shared, (major, minor) = SHARED_KIB[capability] * 1024, divmod(capability, 10)
    gpu = SimpleNamespace(multi_processor_count=40, shared_memory_per_block_optin=shared, major=major, minor=minor)
    patch.setenv("TRITON_CACHE_DIR", str(cache))
    patch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    for name in ("Stream", "Event", "current_stream"):
        patch.setattr(torch.cuda, name, lambda *arguments, **options: Nothing())
    for name in ("stream", "device"):
        patch.setattr(torch.cuda, name, lambda *arguments: contextlib.nullcontext())
    zeros = torch.zeros
    patch.setattr(torch, "zeros", lambda *sizes, pin_memory=False, **options: zeros(*sizes, **options))
    driver.set_active(AnyGpu(capability))


def names_that_compile_and_fit(launch: Callable[[], None], capability: int) -> set[str]:
    """The kernels that ``launch`` launches; fails where one needs more shared memory than the GPU has."""
    wanted = wanted_by(launch)
    for one in wanted:
        assert _compiled(one).metadata.shared <= SHARED_KIB[capability] * 1024, one.name
    return {one.name for one in wanted}


def _compiled(one: Wanted) -> Any:
    return getattr(importlib.import_module(one.module), one.name).preload(one.description)
