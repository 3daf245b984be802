"""The mel of one session at the speeds that were asked for: between flow and vocoder, frame by frame as they come.

Upstream stretches the mel of a whole utterance by linear interpolation (``torch.nn.functional.interpolate``, ``align_corners`` False).
Its output frame k reads the input at (k + 0.5) * speed - 0.5, between two frames, so a stream can do the same with the last frame of what
came before; wherever the mel is cut, the result is the same to the bit. Of a run of T frames at one speed it has int(T / speed), as
upstream. Upstream reads them at multiples of T / int(T / speed), which nobody knows before the end: the same number where that is the
speed, else so little more that the last frame is read less than one frame of audio later.

Runs of different speeds do not touch: each is stretched by itself, and less than one frame of audio at its end is left out.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.hops.speeds import SpeedRun, add_run, heard_frames


class MelStretch:
    """``expect`` frames and their speed, then ``push`` them; frames may be expected long before they come."""

    def __init__(self) -> None:
        self._runs: deque[SpeedRun] = deque()  # that are not over, the oldest first
        self._came = 0  # frames of the first run
        self._made = 0  # frames of audio of it
        self._kept: Tensor | None = None  # the last of those that came, as far as they are read again

    def expect(self, frames: int, speed: float) -> None:
        """Frames that will come behind all that were expected before."""
        add_run(self._runs, frames, speed)

    def push(self, mel: Tensor, finalize: bool) -> Tensor:
        """float32 [bins, M] expected frames -> float32 [bins, N], N possibly 0. finalize: no frames follow."""
        parts: list[Tensor] = []
        while self._runs:
            run = self._runs[0]
            piece = mel[:, : run.frames - self._came]
            mel = mel[:, piece.shape[1] :]
            self._came += piece.shape[1]
            is_over = self._came == run.frames and (finalize or len(self._runs) > 1)
            parts.append(piece if run.speed == 1.0 else self._stretched(piece, run.speed, is_over))
            if not is_over:
                break
            self._runs.popleft()
            self._came, self._made, self._kept = 0, 0, None
        assert not mel.shape[1], "frames that were not expected"
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] if parts else mel

    def _stretched(self, piece: Tensor, speed: float, is_over: bool) -> Tensor:
        """The frames of audio that can be made of the run, of which ``_came`` frames are there, the last of them ``piece``."""
        known = piece if self._kept is None else torch.cat([self._kept, piece], dim=1)
        first, last = self._came - known.shape[1], self._came - 1
        positions: NDArray[np.float64] = (np.arange(self._made, heard_frames(self._came, speed)) + 0.5) * speed - 0.5
        if not is_over:
            positions = positions[: np.searchsorted(positions, last, side="right")]
        self._made += len(positions)
        next_read = max(0, int((self._made + 0.5) * speed - 0.5))
        self._kept = known[:, max(0, next_read - first) :].clone()
        return _between_frames(known, np.clip(positions, 0.0, last) - first)


def _between_frames(mel: Tensor, positions: NDArray[np.float64]) -> Tensor:
    """mel [bins, M] at float64 [N] places between its frames -> [bins, N]."""
    left = positions.astype(np.int64)
    places = torch.from_numpy(np.stack([left, np.minimum(left + 1, mel.shape[1] - 1)])).to(mel.device, non_blocking=True)
    share = torch.from_numpy((positions - left).astype(np.float32)).to(mel.device, non_blocking=True)
    return mel[:, places[0]] * (1.0 - share) + mel[:, places[1]] * share
