"""What is said in Chinese, by funasr-onnx. model: the folder of a Paraformer exported to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funasr_onnx import Paraformer

from bistream.evaluation.judges.sounds import read

PACKAGES = ("funasr-onnx",)


def load(model: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    recognizer = Paraformer(model, batch_size=1)

    def judge(request: dict[str, Any]) -> dict[str, Any]:
        (found,) = recognizer(read(request["path"]))
        preds = found["preds"]
        return {"heard": preds if isinstance(preds, str) else preds[0]}

    return judge
