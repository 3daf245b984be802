"""One row of the table of tensors (``fields.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Field:
    """One input or output. ``datatype`` is Triton's wire name: BYTES, BOOL, INT32, INT64, FP32.

    dims: the full shape, -1 is any size; sizes that depend on the checkpoint are left open and checked by the model that needs them.
    models: those that have it. default: its value where it is absent. check: raises ``InvalidInputError`` for a value that is wrong.
    is_text: BYTES that are UTF-8; text that may be cut inside a character is none. is_start_only: belongs to the first request of a
    session, and later ones that have it are refused. says: whether a value says anything; if not, it is as if it were absent.
    """

    name: str
    datatype: str
    models: tuple[str, ...]
    doc: str = ""
    dims: tuple[int, ...] = (1, 1)
    optional: bool = True
    default: Any = field(default=None, compare=False)
    check: Callable[[Any], None] | None = field(default=None, compare=False)
    is_text: bool = True
    is_start_only: bool = False
    says: Callable[[Any], bool] = field(default=lambda value: value is not None and value is not False, compare=False)

    @property
    def form(self) -> str:
        """``FP32 [1, N]``."""
        return f"{self.datatype} [{', '.join('N' if size < 0 else str(size) for size in self.dims)}]"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == self.dims or (
            len(shape) == len(self.dims)
            and all(found >= 0 and wanted in (-1, found) for found, wanted in zip(shape, self.dims, strict=True))
        )
