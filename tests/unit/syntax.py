"""The syntax of the sources, which several tests read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def syntax(path: Path) -> ast.Module:
    """Parsed once in a process: all sources take seconds."""
    return ast.parse(path.read_text(encoding="utf-8"))
