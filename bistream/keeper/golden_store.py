"""Keeps golden utterances: a folder for each checkpoint, in it a file for each environment that has spoken it.

An environment (tier, GPU, versions, our code) that has not spoken a checkpoint yet is compared with the newest one that has, and then
gets a file of its own. Another checkpoint finds no folder, so a deliberate change needs no order.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import safetensors
import safetensors.numpy

from bistream.keeper.golden import Golden
from bistream.store.fingerprint import Fingerprint, from_json

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredGolden:
    golden: Golden
    environment: Fingerprint
    path: Path


class GoldenStore:
    """Of one checkpoint, below ``directory``."""

    def __init__(self, directory: Path, checkpoint: Fingerprint) -> None:
        self.folder = directory / "golden" / checkpoint.digest

    def find(self, environment: Fingerprint) -> StoredGolden | None:
        """The one of this environment, else the newest of another; ``None`` for a new checkpoint. Damaged files do not count."""
        own = self._path(environment)
        others = sorted(self.folder.glob(f"*{SUFFIX}"), key=_age)
        return next((stored for path in (own, *others) if (stored := _read(path)) is not None), None)

    def save(self, golden: Golden, environment: Fingerprint) -> Path:
        """Raises ``OSError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(environment)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        metadata = {"environment": json.dumps(dict(environment.facts))}
        try:
            new.write_bytes(safetensors.numpy.save(asdict(golden), metadata=metadata))
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return path

    def _path(self, environment: Fingerprint) -> Path:
        return self.folder / f"{environment.digest}{SUFFIX}"


def _age(path: Path) -> float:
    """Newest first; a file that has gone comes last."""
    with contextlib.suppress(OSError):
        return -path.stat().st_mtime
    return 0.0


def _read(path: Path) -> StoredGolden | None:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            arrays = {field.name: file.get_tensor(field.name) for field in fields(Golden)}
            environment = from_json(json.loads(file.metadata()["environment"]))
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return None
    return StoredGolden(Golden(**arrays), environment, path)
