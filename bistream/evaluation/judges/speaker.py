"""Whose voice it is: Resemblyzer's vector, of length 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resemblyzer import VoiceEncoder

from bistream.evaluation.judges.sounds import RATE, SHORTEST_S, read

PACKAGES = ("resemblyzer", "torch")


def load(model: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    encoder = VoiceEncoder("cpu", verbose=False)

    def judge(request: dict[str, Any]) -> dict[str, Any]:
        waveform = read(request["path"])
        if len(waveform) < SHORTEST_S * RATE:
            return {}
        return {"vector": [round(float(value), 4) for value in encoder.embed_utterance(waveform)]}

    return judge
