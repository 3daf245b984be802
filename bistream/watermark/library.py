"""The networks of the package resemble-perth (PerthNet, MIT), as they are stored in it.

Its own modules import librosa, torchaudio and setuptools, which a server has no other use for; the networks are stacks of seven
convolutions, and their weights are a file of the package. So torch alone is needed, and no code of the package runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from bistream.errors import ConfigError

# What its networks see: normalised log magnitudes of the sound at 32 kHz, below 2 kHz (hparams.yaml of the package).
SAMPLE_RATE = 32_000
FFT_SIZE, HOP = 2048, 320
BINS = 128
_LOWEST_DB, _HIGHEST_DB = -180.0, 15.0  # become 0 and 1
DB_PER_UNIT = _HIGHEST_DB - _LOWEST_DB
_LAYERS = 7
_WEIGHTS = "perth_net/pretrained/implicit/perth_net_250000.pth.tar"


def load_weights() -> dict[str, Tensor]:
    """All tensors of the package by their names, on the CPU. Raises ``ConfigError`` where it is not installed, or is another version."""
    found = importlib.util.find_spec("perth")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    if not folders:
        raise ConfigError("The watermark needs the package resemble-perth; run in the checkout: pip install '.[watermark]'")
    path = Path(folders[0], _WEIGHTS)
    if not path.is_file():
        raise ConfigError(f"{path} is not there; install the version of requirements/watermark.txt: pip install '.[watermark]'")
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return weights


def normalised(magnitudes: Tensor) -> Tensor:
    """Of a spectrum, in decibels between the lowest (0) and the highest (1) that the networks know."""
    return (20.0 * torch.log10(magnitudes.clamp(min=10.0 ** (_LOWEST_DB / 20.0))) - _LOWEST_DB) / DB_PER_UNIT


def convolved(weights: Mapping[str, Tensor], name: str, frames: Tensor) -> Tensor:
    """One stack of convolutions over normalised magnitudes [batch, ``BINS``, frames] -> [batch, outputs, frames]."""
    for layer in range(_LAYERS):
        weight, bias = weights[f"{name}.{layer}.conv.weight"], weights[f"{name}.{layer}.conv.bias"]
        frames = functional.conv1d(frames, weight, bias, padding=weight.shape[2] // 2)
        if layer < _LAYERS - 1:
            frames = functional.leaky_relu(frames)
    return frames
