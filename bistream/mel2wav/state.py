"""State of one session between calls of the vocoder. Only ``mel2wav`` reads or writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class VocoderSessionState(Protocol):
    """What callers of a vocoder know of a session's state."""

    finalized: bool
    closed: bool

    def close(self) -> None:
        """Free the tensors. Idempotent."""


@dataclass
class VocoderState:
    """Frames are counted from the beginning of the session's speech, without the prompt.

    ::

        frame        first_frame        emitted_frames        received_frames
                     | context          | withheld            |
        mel          [=====================================]
        source       [=======================...)               as far as it is final
        withheld                        [==================]    audio to fade out of

    0 <= first_frame <= emitted_frames <= received_frames. ``phase`` belongs to frame emitted_frames - 1 (cycles, float64).
    """

    key: tuple[int, int]  # of the noise
    mel: Tensor  # [80, received_frames - first_frame]
    source: Tensor  # [samples], starts at first_frame
    withheld: Tensor  # [480 * (received_frames - emitted_frames)]
    phase: Tensor  # float64 [harmonics]
    first_frame: int = 0
    emitted_frames: int = 0
    received_frames: int = 0
    finalized: bool = False
    closed: bool = False

    def close(self) -> None:
        """Free the tensors. Idempotent."""
        empty = torch.empty(0)
        self.mel, self.source, self.withheld, self.phase = empty, empty, empty, empty
        self.closed = True
