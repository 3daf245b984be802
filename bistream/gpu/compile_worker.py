"""Compiles kernels into Triton's cache: a process that ``compile_ahead`` starts. It needs neither a GPU nor PyTorch.

    python -m bistream.gpu.compile_worker BACKEND ARCHITECTURE WARP_SIZE      e.g. cuda 90 32

A line of input is one kernel, ``[module, name, description]`` in JSON; a line of output says ``ok`` or what went wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

LONGEST_S = 300  # of one compilation; a compiler that hangs ends this process
MOST_CHARACTERS = 200  # of an answer: the compiler quotes whole functions


class Target:
    """As much of a driver of Triton's as compiling asks for, for a GPU that this process doesn't open."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0


def compile_one(line: str) -> str:
    """The line to answer."""
    try:
        module, name, description = json.loads(line)
        kernel = getattr(importlib.import_module(module), name).preload(description)
        _make_launcher(kernel)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_CHARACTERS]
    return "ok"


def _make_launcher(kernel: Any) -> None:
    """Some versions of Triton have the C compiler make a function that launches kernels of one signature, 0.2 s each."""
    with contextlib.suppress(Exception):  # other versions have none, or it is made at the launch
        from triton.backends.nvidia.driver import CudaLauncher  # noqa: PLC0415

        CudaLauncher(kernel.src, kernel.metadata)


def main(arguments: Sequence[str]) -> None:
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415  (may be missing where this module is only imported)
    from triton.runtime import driver  # noqa: PLC0415

    backend, architecture, warp_size = arguments
    driver.set_active(Target(GPUTarget(backend, int(architecture) if architecture.isdigit() else architecture, int(warp_size))))
    for line in sys.stdin:
        signal.alarm(LONGEST_S)
        answer = compile_one(line)
        signal.alarm(0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
