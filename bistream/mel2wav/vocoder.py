"""What callers of a vocoder know of it. Implemented by ``stage.VocoderStage`` and ``causal.stage.CausalVocoderStage``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from bistream.gpu.steps import Steps
from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.state import VocoderSessionState
from bistream.types import FloatArray


class Vocoder(Protocol):
    """All sessions share the weights. Calls must not overlap (one worker thread)."""

    @property
    def joins_exactly(self) -> bool:
        """Whether pieces of any size, joined, are the same as one piece."""

    @property
    def slots(self) -> tuple[int, int] | None:
        """Slots of state in use and in all; None: sessions are bounded by nothing here."""

    def open(self, seed: int) -> VocoderSessionState:
        """State of a new session. Raises ``BusyError`` when there is no room for it."""

    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """One waveform piece (float32 [N], N possibly 0) per hop, in order; a session occurs at most once."""

    def synthesize(self, mel: Tensor, seed: int, speed: float = 1.0) -> FloatArray:
        """Offline: mel [80, T] -> waveform [480 T']; speed stretches the mel linearly, T' = floor(T / speed)."""

    def synthesis(self, mel: Tensor, seed: int, speed: float = 1.0) -> Steps[FloatArray]:
        """``synthesize`` in steps, between which hops may run. Run it in inference mode."""
