"""Whose voice it is, for the checkpoint itself: the vector of its CAM++. model: the model directory. Runs in bistream's own environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bistream.config import RuntimeConfig
from bistream.evaluation.judges.sounds import RATE, SHORTEST_S, read
from bistream.voice.speaker_encoder import SpeakerEncoder

PACKAGES = ("torch",)


def load(model: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    encoder = SpeakerEncoder.from_config(RuntimeConfig(model_dir=model, device="cpu"))

    def judge(request: dict[str, Any]) -> dict[str, Any]:
        waveform = read(request["path"])
        if len(waveform) < SHORTEST_S * RATE:
            return {}
        vector = encoder.embedding(waveform).astype(np.float64)
        return {"vector": (vector / np.linalg.norm(vector)).round(5).tolist()}

    return judge
