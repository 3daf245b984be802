"""One session as its listener experienced it: times, gaps, a line of text and a dictionary for JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bistream.contract.audio import UPSTREAM_SAMPLE_RATE


@dataclass(frozen=True)
class ChunkRecord:
    arrived_s: float  # since the start request was sent
    audio_s: float
    text_consumed: int


@dataclass
class SessionReport:
    """Filled while the session runs; all times in seconds since the start request was sent."""

    session_id: str
    chunks: list[ChunkRecord]
    text_ended_s: float | None = None
    sample_rate: int = UPSTREAM_SAMPLE_RATE
    wall_s: float = 0.0
    error: str | None = None

    @property
    def audio_s(self) -> float:
        return sum(chunk.audio_s for chunk in self.chunks)

    @property
    def time_to_first_audio_s(self) -> float | None:
        return self.chunks[0].arrived_s if self.chunks else None

    @property
    def audio_began_before_text_ended(self) -> bool:
        if not self.chunks:
            return False
        return self.text_ended_s is None or self.chunks[0].arrived_s < self.text_ended_s

    def gaps(self) -> list[float]:
        """Gaps heard by a listener who starts playing with the first chunk and plays at 1x: one entry per late chunk."""
        gaps = []
        plays_until = 0.0
        for index, chunk in enumerate(self.chunks):
            if index and chunk.arrived_s > plays_until:
                gaps.append(chunk.arrived_s - plays_until)
            plays_until = max(plays_until, chunk.arrived_s) + chunk.audio_s
        return gaps

    def as_dict(self) -> dict[str, Any]:
        gaps = self.gaps()
        return {
            "session_id": self.session_id,
            "error": self.error,
            "time_to_first_audio_s": _rounded(self.time_to_first_audio_s),
            "audio_s": _rounded(self.audio_s),
            "wall_s": _rounded(self.wall_s),
            "real_time_factor": _rounded(self.wall_s / self.audio_s) if self.audio_s else None,
            "text_ended_s": _rounded(self.text_ended_s),
            "audio_began_before_text_ended": self.audio_began_before_text_ended,
            "underruns": len(gaps),
            "underrun_s": _rounded(sum(gaps, 0.0)),
            "sample_rate": self.sample_rate,
            "chunks": [{key: _rounded(value) for key, value in asdict(chunk).items()} for chunk in self.chunks],
        }

    def as_text(self) -> str:
        if not self.chunks:
            return "no audio arrived"
        summary = self.as_dict()
        before = " (before the text had ended)" if self.audio_began_before_text_ended else ""
        return (
            f"first audio after {summary['time_to_first_audio_s']:.3f} s{before}, "
            f"{summary['audio_s']:.2f} s of audio in {summary['wall_s']:.2f} s (real-time factor {summary['real_time_factor']:.3f}), "
            f"{len(self.chunks)} chunks, {summary['underruns']} gaps at real-time playback ({summary['underrun_s']:.3f} s)"
        )


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value
