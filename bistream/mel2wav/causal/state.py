"""State of one session between calls of the causal vocoder: 0.6 MB at full size, whatever its length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class CausalState:
    """Frames are counted from the beginning of the session's speech, without the prompt.

    decoded_frames <= pitched_frames <= received_frames: mel frames in the audio handed out (but for its last samples), in the source, and
    known. The last two numbers are 1 and 3 apart, or 0 at the end; both are 0 before the fourth frame.
    mel: [80, received - decoded]. source: from 64 samples before ``decoded_frames`` on, as far as it is known. layers, f0_layers: what the
    convolutions saw last, float32 and float64. cycles: float64 [harmonics], the phase sums at ``pitched_frames``.
    """

    mel: Tensor
    source: Tensor
    layers: Tensor
    f0_layers: Tensor
    cycles: Tensor
    received_frames: int = 0
    pitched_frames: int = 0
    decoded_frames: int = 0
    finalized: bool = False
    closed: bool = False

    def close(self) -> None:
        """Free the tensors. Idempotent."""
        empty = torch.empty(0)
        self.mel, self.source, self.layers, self.f0_layers, self.cycles = empty, empty, empty, empty, empty
        self.closed = True
