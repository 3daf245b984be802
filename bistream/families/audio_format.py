"""The rates of a family's speech: all that clients, hops and networks count in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AudioFormat:
    """sample_rate: Hz of every waveform that leaves the vocoder. tokens_per_second: of speech.

    chunk_tokens: attention chunk of the flow, which commits its caches at absolute multiples of it. lookahead_tokens: those to the right
    that it reads before it emits a frame. vocoder_overlap_frames: mel frames that a vocoder call shares with the previous one.

    Raises ``ValueError`` where a token or a mel frame is no whole number of samples.
    """

    sample_rate: int
    tokens_per_second: int
    mel_frames_per_token: int
    chunk_tokens: int
    lookahead_tokens: int
    vocoder_overlap_frames: int

    def __post_init__(self) -> None:
        if self.sample_rate % self.mel_frames_per_second:
            raise ValueError(f"{self.sample_rate} Hz is no whole number of samples for each of {self.mel_frames_per_second} mel frames")

    @property
    def mel_frames_per_second(self) -> int:
        return self.tokens_per_second * self.mel_frames_per_token

    @property
    def samples_per_mel_frame(self) -> int:
        return self.sample_rate // self.mel_frames_per_second

    @property
    def samples_per_token(self) -> int:
        return self.mel_frames_per_token * self.samples_per_mel_frame

    @property
    def vocoder_overlap_samples(self) -> int:
        return self.vocoder_overlap_frames * self.samples_per_mel_frame
