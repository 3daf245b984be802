"""What is measured of a sentence in a form, and which scores decide it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """numerator, denominator: scores of a sentence; None: 1. is_share: shown in percent."""

    name: str
    title: str
    numerator: str
    denominator: str | None = None
    is_share: bool = False
    is_better_high: bool = False
    digits: int = 2

    def of(self, scores: Mapping[str, Any]) -> tuple[float, float] | None:
        """None: the sentence has no such score."""
        if scores.get(self.numerator) is None:
            return None
        return float(scores[self.numerator]), 1.0 if self.denominator is None else float(scores[self.denominator])


METRICS = (
    Metric("wer", "words wrong", "errors", "units", is_share=True),
    Metric("dnsmos", "DNSMOS overall", "overall", is_better_high=True),
    Metric("p808", "DNSMOS P.808", "p808", is_better_high=True),
    Metric("speaker", "like the voice, Resemblyzer", "speaker", is_better_high=True, digits=3),
    Metric("campplus", "like the voice, CAM++", "campplus", is_better_high=True, digits=3),
    Metric("failures", "failed", "is_failed", is_share=True),
    Metric("runaways", "runaways", "is_runaway", is_share=True),
    Metric("early_ends", "early ends", "is_early_end", is_share=True),
    Metric("pause", "longest pause, s", "pause_s"),
    Metric("click", "loudest joint, dB", "click_db", digits=1),
    Metric("rtf", "real-time factor", "timed_s", "timed_audio_s"),
    Metric("first_audio", "first audio, s", "first_audio_s"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
