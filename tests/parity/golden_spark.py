"""Access to the golden data of Spark-TTS: ``tests/golden_spark``, or the set named by ``PARITY_SPARK_DIR``."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

GOLDEN_DIR = Path(os.environ.get("PARITY_SPARK_DIR") or Path(__file__).parents[1] / "golden_spark")


@cache
def read_json(name: str) -> Any:
    return json.loads((GOLDEN_DIR / name).read_text(encoding="utf-8"))


@cache
def tensors(name: str) -> dict[str, torch.Tensor]:
    """All tensors of ``<name>.safetensors``."""
    return load_file(GOLDEN_DIR / f"{name}.safetensors")
