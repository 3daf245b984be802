"""Which GPUs this process may use, each by a name that CUDA accepts alone (``CUDA_VISIBLE_DEVICES``). Used by ``scripts/serve_gpus.py``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 60.0  # the driver may have to be loaded


def installed_gpus() -> list[str]:
    """UUIDs in the order of the PCI bus; none without a driver."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU-")] if done.returncode == 0 else []


def visible_gpus(environment: Mapping[str, str], installed: Callable[[], list[str]] = installed_gpus) -> list[str]:
    """UUIDs where they are known: a number would mean another GPU to a process behind the MPS daemon of that GPU, which counts from 0 again
    (NVIDIA's manual of the Multi-Process Service)."""
    found = installed()
    chosen = environment.get(DEVICES_VARIABLE)
    if chosen is None:
        return found
    names: list[str] = []
    for name in map(str.strip, chosen.split(",")):
        if not name or name.startswith("-"):  # CUDA ignores what follows an invalid one
            break
        names.append(found[int(name)] if name.isdigit() and int(name) < len(found) else name)
    return names


def deal_out(gpus: list[str], servers: int | None) -> list[str | None]:
    """The GPU of each server; ``None`` without any. servers: how many, or one for each GPU."""
    count = len(gpus) if servers is None else servers
    return [gpus[number % len(gpus)] if gpus else None for number in range(count)]
