"""A conversion writes a whole folder: into ``<folder>.partial``, under its name only when it is complete.

``conversion.json`` says what the folder was made of, so that the same conversion is not repeated and another one replaces it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bistream.errors import ConfigError

FILE_NAME = "conversion.json"
MADE_OF = "weights_sha256"  # its entry for the file of the language model
PARTIAL_SUFFIX = ".partial"


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_record(folder: Path) -> dict[str, Any]:
    """Empty where the folder has none, or one that cannot be read."""
    try:
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_folder(out: Path, source: Mapping[str, object], write: Callable[[Path], object]) -> bool:
    """Fill a fresh folder with ``write`` and give it the name ``out``. Returns False where ``out`` was made of the same already.

    Raises ``ConfigError`` where ``out`` is something that no conversion made.
    """
    if out.exists():
        record = read_record(out)
        if record == dict(source):
            return False
        if not record and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists and was not made by a conversion; name another folder or remove it.")
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        (partial / FILE_NAME).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True
