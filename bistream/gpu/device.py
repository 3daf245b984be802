"""Selects the device that a process computes on. Loads torch; imported by the stages."""

from __future__ import annotations

import torch

from bistream.errors import ConfigError
from bistream.processes.start_phases import phase


def resolve_device(name: str) -> torch.device:
    """name: as in ``RuntimeConfig``; ``auto`` is the first GPU, or the CPU. Raises ``ConfigError`` for a GPU that does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(name)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"Parameter 'device' is {name!r}, but there is no such GPU; set it to auto or cpu.")
    return chosen


def device_name(device: torch.device) -> str:
    """Of a GPU as its driver says it, else ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def open_device(device: torch.device) -> None:
    """Make a GPU ready for this process, which takes a second or so; the first tensor on it would do so anyway."""
    if device.type == "cuda":
        with phase("opening the GPU"):
            torch.zeros(1, device=device)
            torch.cuda.synchronize(device)
