"""Quality without a reference: DNSMOS, overall and P.808, from 1 to 5. Noise and clipping cost points; words do not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from speechmos import dnsmos

from bistream.evaluation.judges.sounds import RATE, SHORTEST_S, read

PACKAGES = ("speechmos", "onnxruntime")


def load(model: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def judge(request: dict[str, Any]) -> dict[str, Any]:
        waveform = read(request["path"])
        if len(waveform) < SHORTEST_S * RATE:
            return {}
        scores = dnsmos.run(np.clip(waveform, -1.0, 1.0), RATE, return_df=False)
        return {"overall": round(float(scores["ovrl_mos"]), 3), "p808": round(float(scores["p808_mos"]), 3)}

    return judge
