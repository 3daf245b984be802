"""``download_manifest.json`` of a downloaded checkpoint: where it came from, and size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bistream.hub.listing import DownloadError, RemoteFile

FILE_NAME = "download_manifest.json"
BLOCK = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """revision: what was asked for; commit: what it was at that time."""

    hub: str
    repo_id: str
    revision: str
    commit: str
    files: dict[str, FileRecord]

    @property
    def total_bytes(self) -> int:
        return sum(record.size for record in self.files.values())


def hash_file(path: Path) -> tuple[str, str]:
    """(SHA-256, SHA-1 of git's blob) of a file, both hexadecimal, in one pass."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            sha256.update(block)
            blob.update(block)
    return sha256.hexdigest(), blob.hexdigest()


def record_of(path: Path, expected: RemoteFile) -> FileRecord | None:
    """Size and checksum of a file; None where they are not those that the hub gave."""
    size = path.stat().st_size
    if size != expected.size:
        return None
    sha256, git_sha1 = hash_file(path)
    if expected.sha256 not in (None, sha256) or expected.git_sha1 not in (None, git_sha1):
        return None
    return FileRecord(size, sha256)


def write(folder: Path, manifest: Manifest) -> None:
    (folder / FILE_NAME).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest | None:
    """None where the folder has none: it was not made by a download. Raises ``DownloadError`` for a damaged one."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        files = {str(name): FileRecord(int(record["size"]), str(record["sha256"])) for name, record in values.pop("files").items()}
        return Manifest(**{key: str(values[key]) for key in ("hub", "repo_id", "revision", "commit")}, files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{path} is damaged ({type(error).__name__}); remove {folder} and download it again.") from error


def check(folder: Path, manifest: Manifest) -> None:
    """Compare every file with its record. Raises ``DownloadError`` naming the first that is missing or differs."""
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise DownloadError(f"{path} is missing, though it was downloaded; remove {folder} and download it again.")
        if path.stat().st_size != record.size:
            raise DownloadError(
                f"{path} has {path.stat().st_size} bytes instead of {record.size}; remove {folder} and download it again, "
                f"or remove {FILE_NAME} if you have replaced the file yourself."
            )
        if hash_file(path)[0] != record.sha256:
            raise DownloadError(
                f"{path} is not the file that was downloaded (its SHA-256 differs from {FILE_NAME}); remove {folder} and download it "
                f"again, or remove {FILE_NAME} if you have replaced the file yourself."
            )
