"""Which files of a model directory are those of the release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bistream.checkpoints.download import hash_file
from bistream.families.family import Release


@dataclass(frozen=True)
class Comparison:
    """Names of files that are and that are not those of the release."""

    release: Release
    equal: tuple[str, ...]
    different: tuple[str, ...]


def compare(model_dir: Path, release: Release, before_file: Callable[[str], None] = lambda name: None) -> Comparison:
    """Reads the files whose size is the released one: 3 GB take some seconds. before_file: called with the name of each of those.

    Of a file whose hash is not known the size decides.
    """
    equal = list[str]()
    for name, (size, sha256) in release.files.items():
        path = model_dir / name
        if path.is_file() and path.stat().st_size == size:
            before_file(name)
            if not sha256 or hash_file(path)[0] == sha256:
                equal.append(name)
    return Comparison(release, tuple(equal), tuple(name for name in release.files if name not in equal))
