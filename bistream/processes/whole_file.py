"""Writes a file that appears with its whole content or not at all: a reader may look at any time, and the disk may be full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, *parts: bytes) -> None:
    """In the place of an earlier one. Raises ``OSError``, and leaves nothing behind then."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            file.writelines(parts)
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
