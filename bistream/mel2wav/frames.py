"""Sizes that HiFT and the joints of its calls are written for. The factory compares them with the family."""

from __future__ import annotations

from bistream.errors import CheckpointError
from bistream.families.family import Family

SAMPLES_PER_MEL_FRAME = 480
VOCODER_OVERLAP_FRAMES = 8  # mel frames that a call shares with the previous one
VOCODER_OVERLAP_SAMPLES = VOCODER_OVERLAP_FRAMES * SAMPLES_PER_MEL_FRAME


def check_frames(family: Family) -> None:
    """Raises ``CheckpointError`` for a family that counts otherwise."""
    rates = family.audio_format
    if (rates.samples_per_mel_frame, rates.vocoder_overlap_frames) != (SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES):
        raise CheckpointError(
            f"{family.title} has {rates.samples_per_mel_frame} samples in a mel frame and joints of {rates.vocoder_overlap_frames} frames, "
            f"and this vocoder {SAMPLES_PER_MEL_FRAME} and {VOCODER_OVERLAP_FRAMES}; give the family another vocoder."
        )
