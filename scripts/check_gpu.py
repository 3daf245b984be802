#!/usr/bin/env python3
"""Reports in one sentence what the GPU tests need and this Python or host lacks, with exit code 1. For ``run.sh test-gpu``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

MODULES = ("numpy", "torch", "triton", "pytest")


def obstacle(absent: Sequence[str], capability: tuple[int, int] | None, needed: tuple[int, int]) -> str:
    """The unmet requirement as a sentence; empty if there is none. capability: of the GPU, None without one."""
    if absent:
        return f"The GPU tests need {', '.join(absent)}, which {sys.executable} lacks; set PYTHON_GPU to a Python that has them."
    number = ".".join(map(str, needed))
    if capability is None:
        return f"The GPU tests need a CUDA GPU of compute capability {number} or later, and torch finds none; choose another host."
    if capability < needed:
        found = ".".join(map(str, capability))
        return f"The GPU tests need a GPU of compute capability {number} or later, and this one has {found}; run them on another host."
    return ""


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    absent = [name for name in MODULES if importlib.util.find_spec(name) is None]
    capability, needed = None, (0, 0)
    if not absent:
        import torch  # noqa: PLC0415  (may be missing)

        from bistream.gpu.tier import CAPABILITY as needed  # noqa: PLC0415

        capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    sentence = obstacle(absent, capability, needed)
    if sentence:
        print(f"run.sh: {sentence}", file=sys.stderr)
    return int(bool(sentence))


if __name__ == "__main__":
    sys.exit(main())
