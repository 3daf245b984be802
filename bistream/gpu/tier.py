"""Chooses the tier of code that computes a network: our own kernels, recorded graphs, or plain PyTorch. Nothing else decides it.

``kernels``  our Triton and Gluon kernels in recorded CUDA graphs, on GPUs of compute capability 9.0 (Hopper), with Triton 3.6
``graphs``   library code, plain Triton kernels or both in recorded CUDA graphs, on every CUDA GPU that a stage's needs admit
``plain``    the PyTorch networks: for the CPU, for float32, and as the reference that the other tiers are tested against

The parameter ``kernels`` requests one of them; ``auto`` takes the first that can serve.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from bistream.errors import ConfigError
from bistream.gpu.device import device_name

_log = logging.getLogger(__name__)

KERNELS_CAPABILITY = (9, 0)  # shared memory, matrix instructions and bulk copies that our kernels are written for
# Gluon is experimental: 3.7 renames what the kernels call (``gl.thread_barrier``), so none of them compiles there. PyTorch 2.11 brings 3.6.
KERNELS_TRITON = "3.6"


class Tier(Enum):
    KERNELS = "kernels"
    GRAPHS = "graphs"
    PLAIN = "plain"


_NAMES = {
    Tier.KERNELS: "own kernels in recorded CUDA graphs",
    Tier.GRAPHS: "recorded graphs",
    Tier.PLAIN: "plain PyTorch",
}


@dataclass(frozen=True)
class TierChoice:
    """tier: what serves ``stage``. reasons: why no faster tier does; empty when it is the fastest or was requested."""

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


def choose_tier(
    stage: str,
    requested: str,
    device: torch.device,
    dtype: torch.dtype,
    kernels_need: Sequence[str] = (),
    graphs_need: Sequence[str] = (),
    fastest: Tier = Tier.KERNELS,
) -> TierChoice:
    """The tier that serves ``stage``; logs the choice in one line.

    requested: the parameter ``kernels`` (auto | kernels | graphs | plain).
    kernels_need: requirements of our kernels that the network's sizes or dtype do not meet, as noun phrases. graphs_need: those of both.
    fastest: ``GRAPHS`` for a stage whose recorded graphs launch kernels of their own, which ``kernels`` then requests too.
    Raises ``ConfigError`` when the requested tier cannot serve.
    """
    against_graphs = _against_graphs(device, dtype) or tuple(f"recorded graphs need {need}" for need in graphs_need)
    against_kernels = against_graphs or _against_kernels(device, kernels_need)
    against = {Tier.KERNELS: against_kernels, Tier.GRAPHS: against_graphs, Tier.PLAIN: ()}
    if fastest is Tier.GRAPHS:
        del against[Tier.KERNELS]
        against_kernels = ()
    if requested == "auto":
        tier = next(tier for tier in against if not against[tier])
        reasons = against_kernels if tier is Tier.GRAPHS else against_graphs
    else:
        tier, reasons = max(Tier(requested), fastest, key=list(Tier).index), ()
        if against[tier]:
            raise ConfigError(f"Parameter 'kernels' is {requested!r}, but {stage}: {'; '.join(against[tier])}; set it to auto.")
    choice = TierChoice(stage, tier, device_name(device), reasons)
    _log.info("%s", choice.sentence)
    return choice


def _against_graphs(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    if device.type != "cuda":
        return ("recorded graphs need a CUDA GPU",)
    if dtype == torch.float32:
        return ("recorded graphs need a 16-bit dtype",)
    return ()


def _against_kernels(device: torch.device, kernels_need: Sequence[str]) -> tuple[str, ...]:
    reasons = [f"own kernels need {need}" for need in kernels_need]
    if torch.cuda.get_device_capability(device) != KERNELS_CAPABILITY:
        reasons.insert(0, "own kernels need compute capability {}.{}".format(*KERNELS_CAPABILITY))
    elif ".".join((found := _triton_version()).split(".")[:2]) != KERNELS_TRITON:
        reasons.insert(0, f"own kernels need Triton {KERNELS_TRITON} (PyTorch 2.11), and {found or 'none'} is installed")
    return tuple(reasons)


def _triton_version() -> str:
    """Empty without it. Imported by name: modules of this package that load Triton are for its kernels alone."""
    try:
        return str(importlib.import_module("triton").__version__)
    except ImportError:
        return ""
