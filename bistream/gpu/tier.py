"""Chooses the tier of code that computes a network: recorded graphs or plain PyTorch. Nothing else decides it.

``graphs``  recorded CUDA graphs, of Triton kernels, library code or both: in 16 bit, on GPUs from compute capability 8.0 on, for the sizes
            that a stage's kernels know
``plain``   the PyTorch networks: for the CPU, for float32, for all other sizes, and as the reference that the graphs are tested against

The parameter ``kernels`` requests one of them; ``auto`` takes the first that can serve.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from bistream.errors import ConfigError
from bistream.gpu.device import device_name

_log = logging.getLogger(__name__)

CAPABILITY = (8, 0)  # Triton has no matrix instructions for older GPUs
# All kernels compile with each version of this range (PyTorch 2.11 brings 3.6); 3.4 compiles no dependent launch.
OLDEST_TRITON, NEWEST_TRITON = (3, 5), (3, 7)


class Tier(Enum):
    GRAPHS = "graphs"
    PLAIN = "plain"


_NAMES = {Tier.GRAPHS: "recorded graphs", Tier.PLAIN: "plain PyTorch"}


@dataclass(frozen=True)
class TierChoice:
    """tier: what serves ``stage``. reasons: why no recorded graphs do; empty when they do or plain PyTorch was requested."""

    stage: str
    tier: Tier
    device: str
    reasons: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, str]:
        """Of the metric of the tier: stage and tier."""
        return self.stage.replace(" ", "_"), self.tier.value

    @property
    def sentence(self) -> str:
        """The log line."""
        reasons = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.stage}: {_NAMES[self.tier]} on {self.device}{reasons}"


def choose_tier(stage: str, requested: str, device: torch.device, dtype: torch.dtype, needs: Sequence[str] = ()) -> TierChoice:
    """The tier that serves ``stage``; logs the choice in one line.

    requested: the parameter ``kernels`` (auto | graphs | plain). needs: requirements of the stage's graphs that the network's sizes do not
    meet, as noun phrases. Raises ``ConfigError`` when the requested tier cannot serve.
    """
    against = () if requested == Tier.PLAIN.value else _against_graphs(device, dtype, needs)
    if requested == Tier.GRAPHS.value and against:
        raise ConfigError(f"Parameter 'kernels' is {requested!r}, but {stage}: {'; '.join(against)}; set it to auto.")
    tier = Tier.PLAIN if against or requested == Tier.PLAIN.value else Tier.GRAPHS
    choice = TierChoice(stage, tier, device_name(device), against)
    _log.info("%s", choice.sentence)
    return choice


def _against_graphs(device: torch.device, dtype: torch.dtype, needs: Sequence[str]) -> tuple[str, ...]:
    if device.type != "cuda":
        return ("recorded graphs need a CUDA GPU",)
    found = _triton_version()
    version = re.match(r"(\d+)\.(\d+)", found)
    rules = (
        (dtype != torch.float32, "a 16-bit dtype"),
        (torch.cuda.get_device_capability(device) >= CAPABILITY, "compute capability {}.{}".format(*CAPABILITY)),
        (
            version is not None and OLDEST_TRITON <= (int(version[1]), int(version[2])) <= NEWEST_TRITON,
            "Triton {}.{} to {}.{}, and {} is installed".format(*OLDEST_TRITON, *NEWEST_TRITON, found or "none"),
        ),
    )
    return tuple(f"recorded graphs need {need}" for need in (*(text for good, text in rules if not good), *needs))


def _triton_version() -> str:
    """Empty without it. Imported by name: modules of this package that load Triton are for its kernels alone."""
    try:
        return str(importlib.import_module("triton").__version__)
    except ImportError:
        return ""
