"""One call of the causal vocoder for one session, as integers. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME


class Progress(Protocol):
    """Mel frames of a session that are known, in the source, and in the audio; see ``state.CausalState``."""

    received_frames: int
    pitched_frames: int
    decoded_frames: int


@dataclass(frozen=True)
class CausalPlan:
    """Frames of a call count from the first one that is not decoded.

    frames: known ones, of which the first ``kept`` came with earlier calls. ahead: those whose source is known before the call.
    pitched: frames of f0 and source that the call makes; decoded: frames of audio. first_pitched: of the session, the first new one.
    """

    frames: int
    kept: int
    ahead: int
    pitched: int
    decoded: int
    first_pitched: int
    starts: bool
    ends: bool

    def samples(self, unfinished: int) -> tuple[int, int]:
        """The audio that is due, counted from the first sample of the first frame.

        unfinished: samples that the next frame changes, so a call begins and ends as many earlier, but at the ends of the speech.
        """
        if not self.decoded:
            return 0, 0
        return 0 if self.starts else -unfinished, self.decoded * SAMPLES_PER_MEL_FRAME - (0 if self.ends else unfinished)


def plan_call(session: Progress, new_frames: int, finalize: bool, look_right: int, f0_look_right: int) -> CausalPlan:
    """look_right, f0_look_right: frames to the right that a frame of audio, and of f0, needs while the speech goes on."""
    received = session.received_frames + new_frames
    pitched = received if finalize else max(0, received - f0_look_right)
    decoded = received if finalize else max(0, received - look_right)
    return CausalPlan(
        frames=received - session.decoded_frames,
        kept=session.received_frames - session.decoded_frames,
        ahead=session.pitched_frames - session.decoded_frames,
        pitched=pitched - session.pitched_frames,
        decoded=decoded - session.decoded_frames,
        first_pitched=session.pitched_frames,
        starts=session.decoded_frames == 0,
        ends=finalize,
    )


def advance(session: Progress, plan: CausalPlan) -> None:
    """The session's numbers after the call."""
    session.received_frames += plan.frames - plan.kept
    session.pitched_frames += plan.pitched
    session.decoded_frames += plan.decoded
