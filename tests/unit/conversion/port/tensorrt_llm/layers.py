"""``ColumnLinear``."""

from __future__ import annotations

from typing import Any


class ColumnLinear:
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str | None = None,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
        gather_output: bool = True,
        **kwargs: Any,
    ) -> None:
        self.shape = (out_features // tp_size, in_features)
        self.bias = (out_features // tp_size,) if bias else None
