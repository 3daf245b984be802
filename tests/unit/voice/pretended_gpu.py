"""A host that has a GPU, as far as the choice of programs goes; what would run there runs on the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from bistream.voice import programs


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, network: ModuleType) -> None:
    """network: the module whose ``load`` reads the network onto a device."""
    load = network.load
    monkeypatch.setattr("bistream.gpu.device.resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("bistream.gpu.device.open_device", lambda device: None)
    monkeypatch.setattr("bistream.gpu.device.device_name", lambda device: "a GPU")
    monkeypatch.setattr(programs, "may_use_cuda", lambda name: True)
    monkeypatch.setattr(network, "load", lambda config, device: load(config, torch.device("cpu")))
