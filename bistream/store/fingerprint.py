"""What a stored thing was made for: files, versions and hardware, written beside it and compared before it is used.

Two kinds of stored things:

- What somebody made and chose (an engine, a converted checkpoint, a voice) is refused when it does not fit: ``Fingerprint.require``
  raises one sentence that says what differs and what to do.
- What only saves time (compiled kernels, engines built on the fly) lies in a folder named after ``Fingerprint.digest``. Under another
  fingerprint it is not found, and is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from bistream.errors import CheckpointError

WHOLE_BYTES = 2**20  # a file up to this size is hashed as a whole
END_BYTES = 2**16  # of larger files: so much of the head and the tail,
SAMPLES, SAMPLE_BYTES = 64, 4096  # and so many blocks of this size at equal distances
NO_VALUE = "none"
_DIGITS = 16  # hexadecimal digits of a hash: it tells versions of a thing apart and guards against no attack
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
_SMI_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Fingerprint:
    """facts: name and value of each thing that the stored one depends on; names are words for people, such as "torch"."""

    facts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A short name: equal for equal facts in any order."""
        return _digest([json.dumps(dict(self.facts), sort_keys=True).encode()])

    def differences(self, here: Fingerprint) -> list[str]:
        """``name VALUE, here VALUE`` for each fact in which this one differs from ``here``."""
        names = sorted(self.facts.keys() | here.facts.keys())
        pairs = [(name, self.facts.get(name, NO_VALUE), here.facts.get(name, NO_VALUE)) for name in names]
        return [f"{name} {stored}, here {present}" for name, stored, present in pairs if stored != present]

    def require(self, here: Fingerprint, what: str, remedy: str) -> None:
        """Raises ``CheckpointError`` unless this stored fingerprint fits ``here``. what: begins the sentence; remedy: ends it."""
        if different := self.differences(here):
            raise CheckpointError(f"{what} was made for something else ({'; '.join(different)}); {remedy}.")


def from_json(facts: object) -> Fingerprint:
    """Raises ``ValueError`` unless it is a mapping of strings."""
    if not isinstance(facts, Mapping) or not all(isinstance(item, str) for pair in facts.items() for item in pair):
        raise ValueError("facts are names and values")
    return Fingerprint(dict(facts))


def files_hash(folder: Path, names: Iterable[str]) -> str:
    """One hash of the named files of ``folder``, in milliseconds whatever their size. Raises ``CheckpointError`` for a missing one."""
    return _digest(part for name in sorted(names) for part in (name.encode(), file_hash(folder / name).encode()))


def file_hash(path: Path) -> str:
    """Identifies the content of a file without reading all of it.

    A ``.pt`` file is a zip archive whose directory holds a CRC-32 of every tensor, as the writer computed it: the hash is of that
    directory. So any other content makes another hash, while a file damaged after it was written keeps the hash of what it should
    hold, and is not taken for a new one. Of another file the hash is of its size and parts: all of it up to ``WHOLE_BYTES``, else head,
    tail and blocks at equal distances. Large files that differ elsewhere alone have one hash; other training makes all of a file differ.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return _digest([str(size).encode(), *(_archive_directory(file) or _parts(file, size))])
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror}); check model_dir or download the model again.") from error


def _archive_directory(file: BinaryIO) -> list[bytes]:
    """Name, size and checksum of each member; empty where the file is no archive, or was written without checksums."""
    if not zipfile.is_zipfile(file):
        return []
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not any(member.CRC == 0 and member.file_size for member in members):
            return [f"{member.filename} {member.file_size} {member.CRC:08x}".encode() for member in members]
    return []


def _parts(file: BinaryIO, size: int) -> Iterable[bytes]:
    if size <= WHOLE_BYTES:
        file.seek(0)
        return [file.read()]
    places = [(0, END_BYTES), (size - END_BYTES, END_BYTES)]
    places += [(index * (size - SAMPLE_BYTES) // SAMPLES, SAMPLE_BYTES) for index in range(1, SAMPLES)]
    return [_read_at(file, *place) for place in places]


def _read_at(file: BinaryIO, start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)


def _digest(parts: Iterable[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=_DIGITS // 2)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


@cache
def code_hash() -> str:
    """Of this package: a change of our own may change the last bit of a sum."""
    package = Path(__file__).resolve().parents[1]
    return files_hash(package, [str(path.relative_to(package)) for path in package.rglob("*.py")])


def versions(*packages: str) -> dict[str, str]:
    """Facts: the installed version of each package, without importing it."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = NO_VALUE
    return found


def gpus() -> tuple[str, ...]:
    """``NAME COMPUTE_CAPABILITY`` of the host's GPUs, each kind once; empty without the driver's ``nvidia-smi``. Imports no torch."""
    try:
        finished = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, check=True, timeout=_SMI_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(sorted({" ".join(line.replace(",", " ").split()) for line in finished.stdout.splitlines() if line.strip()}))


def processor() -> str:
    """Name of the CPU, as the kernel gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return NO_VALUE
