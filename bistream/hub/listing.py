"""What a hub offers: the files of one revision of a repository, and which of them a checkpoint needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from bistream.checkpoint import QWEN_DIRECTORY
from bistream.checkpoint_files import family_of_names
from bistream.family import FAMILIES, Family

OPTIONAL = ("spk2info.pt", "README*", "LICENSE*")


_SERVED = " or ".join(family.title for family in FAMILIES)


class DownloadError(Exception):
    """The checkpoint could not be downloaded or is not what was downloaded; one sentence that says what to do."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository. Hugging Face gives ``sha256`` for large files and ``git_sha1`` (of git's blob) for all others."""

    path: str  # with slashes
    size: int  # bytes
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def content_id(self) -> str:
        """A name for this content: part files of different contents never mix."""
        return self.sha256 or self.git_sha1 or self.path.replace("/", "_")


@dataclass(frozen=True)
class Listing:
    """revision: what was asked for (a branch, tag or commit). commit: what it is, where the hub tells; else the revision again."""

    hub: str
    repo_id: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]


class Hub(Protocol):
    """One hub. Every method raises ``DownloadError``, and ``OSError`` where the disk is at fault."""

    @property
    def name(self) -> str: ...

    def list_files(self, repo_id: str, revision: str) -> Listing: ...

    def fetch(self, listing: Listing, file: RemoteFile, scratch: Path) -> Path:
        """The whole file, somewhere below ``scratch``, where an earlier call may have left a part of it."""


def required_files(family: Family) -> tuple[tuple[str, ...], ...]:
    """Files of a model directory that the server reads; of the names in one tuple one is enough."""
    return (
        family.yaml_names,
        ("llm.pt",),
        ("flow.pt",),
        ("hift.pt",),
        ("campplus.onnx",),
        (family.speech_tokenizer_file,),
        *((f"{QWEN_DIRECTORY}/{name}",) for name in ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json")),
    )


def missing_files(paths: set[str]) -> list[str]:
    """The first name of every required file that is not among ``paths``, which tell the family."""
    return [names[0] for names in required_files(family_of_names(paths)) if not paths & set(names)]


def checkpoint_files(listing: Listing) -> tuple[RemoteFile, ...]:
    """The files that the server reads. Raises ``DownloadError`` where one is not in the repository."""
    paths = {file.path for file in listing.files}
    if missing := missing_files(paths):
        raise DownloadError(
            f"{listing.repo_id} at revision {listing.revision} has no {missing[0]}, so it is no checkpoint of {_SERVED}; "
            "name another repository or revision, or download all of its files with --all."
        )
    wanted = {name for names in required_files(family_of_names(paths)) for name in names}
    return tuple(file for file in listing.files if file.path in wanted or any(fnmatchcase(file.path, name) for name in OPTIONAL))


def check_paths(listing: Listing) -> None:
    """Raises ``DownloadError`` for a path that would leave the folder."""
    for file in listing.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\\" in file.path or not path.parts:
            raise DownloadError(f"{listing.repo_id} lists a file outside of its folder ({file.path!r}); do not use this repository.")
