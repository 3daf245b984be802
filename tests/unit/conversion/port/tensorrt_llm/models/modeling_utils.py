"""``QuantConfig``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int = 128
    smoothquant_val: float = 0.5
