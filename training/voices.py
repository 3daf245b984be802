"""The voices of the corpus: which teacher speaks, shifted by how much, and for how many hours. Pure data.

A shifted voice is spoken ``shift`` times as slowly and played ``shift`` times as fast: pitch and formants move, the tempo stays, and the
speaker judge hears another person. (The HTS voice cannot speak slowly: its shifted copy has another tempo, too.) Names are ours: the
people behind the recordings endorse nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Voice:
    """engine: festival (teacher: a Scheme function that selects the voice) or flite (teacher: name of its library)."""

    name: str
    engine: str
    teacher: str
    hours: float
    shift: float = 1.0


SLT_HTS = "voice_cmu_us_slt_arctic_hts"
KED = "voice_ked_diphone"
VOICES = (
    Voice("nora", "festival", SLT_HTS, 17.0),
    Voice("felix", "flite", "cmu_us_rms", 17.0),
    Voice("karl", "festival", KED, 4.0),
    Voice("ivy", "flite", "cmu_us_rms", 4.0, 1.2),
    Voice("otto", "flite", "cmu_us_rms", 4.0, 0.85),
    Voice("vera", "festival", SLT_HTS, 4.0, 0.85),
    Voice("timo", "festival", KED, 2.0, 1.2),
    Voice("lena", "flite", "cmu_us_slt", 2.0, 1.15),
)
HELD_OUT_VOICE = Voice("angus", "flite", "cmu_us_awb", 0.0)  # never trained on: shows what cloning is worth
DEFAULT_VOICE = "nora"


def voice_named(name: str) -> Voice:
    """Raises ``KeyError``."""
    return {voice.name: voice for voice in (*VOICES, HELD_OUT_VOICE)}[name]
