"""Conversions write whole folders: into ``<folder>.partial``, with ``conversion.json``, under their name only when they are complete.

``conversion.json`` says what the folder was made of, so that the same conversion is not repeated and another one replaces it, and holds
the checksums of its files, so that one that was damaged or edited since is neither taken for the converted one nor overwritten.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from bistream.errors import ConfigError

FILE_NAME = "conversion.json"
PARTIAL_SUFFIX = ".partial"
FILES = "files"  # entry of the record: SHA-256 by name
Source = Mapping[str, object]


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_record(folder: Path) -> dict[str, object] | None:
    """None where the folder has none, or one that cannot be read."""
    try:
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def check_files(folder: Path, record: Mapping[str, object]) -> None:
    """Raises ``ConfigError`` naming a file that is missing or is not as it was written. record: of ``read_record``; those of earlier
    versions know no files."""
    known = record.get(FILES)
    for name, sha256 in sorted(known.items()) if isinstance(known, Mapping) else ():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise ConfigError(
                f"{folder / name} is not as the conversion wrote it; remove {folder} and convert again, or, if you have changed it "
                f"yourself, remove {folder / FILE_NAME}, and it is taken as it is."
            )


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_folder(out: Path, source: Source, write: Callable[[Path], None]) -> bool:
    """Fill a fresh folder with ``write`` and give it the name ``out``. Returns False where ``out`` was made of the same already.

    Raises ``ConfigError`` where ``out`` is something that no conversion made, or was changed since.
    """
    if out.exists():
        record = read_record(out)
        if record is not None:
            check_files(out, record)
        if record is not None and {name: value for name, value in record.items() if name != FILES} == dict(source):
            return False
        if record is None and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists and was not made by a conversion; name another folder or remove it.")
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        record = {**source, FILES: {name: file_sha256(partial / name) for name in _names(partial)}}
        (partial / FILE_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True
