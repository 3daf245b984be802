"""Which frame of the speech is heard when, where it is spoken at speeds of its own. Pure; no torch.

The mel is stretched between flow and vocoder (``mel2wav.stretch``), each run of frames of one speed by itself: n frames of the speech
become floor(n / speed) frames of the audio, of which the k-th begins at frame k * speed of the run. So the front model knows from the
tokens that it has sent, and their speeds, how long their audio is and which part of the speech has been heard.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass


def heard_frames(frames: int, speed: float) -> int:
    """Frames of audio that a run of speech becomes."""
    return int(frames / speed)


@dataclass
class SpeedRun:
    """Frames of the speech, in a row and at one speed."""

    frames: int
    speed: float


def add_run(runs: MutableSequence[SpeedRun], frames: int, speed: float) -> None:
    """More speech behind ``runs``; at the same speed as before it continues the last of them."""
    if runs and runs[-1].speed == speed:
        runs[-1].frames += frames
    elif frames:
        runs.append(SpeedRun(frames, speed))


class SpeedRuns:
    """A session's speech so far, as runs of different speeds. Frames count from its beginning."""

    def __init__(self) -> None:
        self._runs: list[SpeedRun] = []

    def add(self, frames: int, speed: float) -> None:
        """More speech."""
        add_run(self._runs, frames, speed)

    @property
    def heard(self) -> int:
        """Frames of audio that all of it becomes."""
        return sum(heard_frames(run.frames, run.speed) for run in self._runs)

    def spoken_at(self, heard: float) -> float:
        """Frames of the speech that are over after so many frames of audio. Beyond its end the last speed goes on."""
        spoken = 0
        for run in self._runs[:-1]:
            of_run = heard_frames(run.frames, run.speed)
            if heard < of_run:
                return spoken + heard * run.speed
            heard -= of_run
            spoken += run.frames
        return spoken + heard * (self._runs[-1].speed if self._runs else 1.0)
