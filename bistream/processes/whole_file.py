"""Writes a file that appears with its whole content or not at all: a reader may look at any time, and the disk may be full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, *parts: bytes, is_lasting: bool = False) -> None:
    """In the place of an earlier one. Raises ``OSError``, and leaves nothing behind then.

    is_lasting: it survives a failure of the machine, and other users, as whom a server may run, may read it.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            file.writelines(parts)
            if is_lasting:
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
