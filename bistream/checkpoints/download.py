"""Makes a model directory of a hub's repository: all of it, checked, under its name; or nothing under its name.

The hub's library fetches into ``<directory>.partial`` and keeps whole files there between runs. The folder gets its name, by rename, once
every file has the checksum that the hub gives. ``download_manifest.json`` says where it came from, with size and SHA-256 of each file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bistream.checkpoints.files import family_of_names
from bistream.families.family import Release
from bistream.families.registry import FAMILIES

RECORD = "download_manifest.json"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last one: a limit of the process or of the file system on one file
_FOLDERS = " or ".join(f"/path/to/{family.repository}" for family in FAMILIES)
HAVE_IT = f"set MODEL_DIR to a checkpoint that you have (MODEL_DIR={_FOLDERS})"
OPTIONAL = ("spk2info.pt", "README.md", "LICENSE")
Record = dict[str, Any]  # hub, repo_id, revision, commit, files: {name: {size, sha256}}


class DownloadError(Exception):
    """The checkpoint could not be downloaded or is not what was downloaded; one sentence that says what to do."""


def missing_files(paths: set[str]) -> list[str]:
    """The first name of every required file that is not among ``paths``, which tell the family."""
    return [names[0] for names in family_of_names(paths).required_files if not paths & set(names)]


def checkpoint_files(paths: Collection[str], repo_id: str) -> list[str]:
    """Those of a repository's files that the server reads. Raises ``DownloadError`` where one is not there."""
    if missing := missing_files(set(paths)):
        served = " or ".join(family.title for family in FAMILIES)
        raise DownloadError(f"{repo_id} has no {missing[0]}, so it is no checkpoint of {served}; name another repository or revision.")
    wanted = {name for names in family_of_names(set(paths)).required_files for name in names}
    return sorted(wanted.union(OPTIONAL).intersection(paths))


class Remote(NamedTuple):
    """commit: what the revision is, where the hub tells; else the revision. checksums: of each file, its SHA-256 or that of git's blob.
    fetch: the file with this name into a folder; one that is there already is kept."""

    commit: str
    checksums: dict[str, str]
    fetch: Callable[[str, Path], object]


def _hugging_face(repo_id: str, revision: str) -> Remote:
    from huggingface_hub import HfApi  # noqa: PLC0415  (only installed where something is downloaded)

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    info = api.model_info(repo_id, revision=revision, files_metadata=True)
    checksums = {one.rfilename: one.lfs.sha256 if one.lfs else one.blob_id or "" for one in info.siblings or ()}
    commit = info.sha or revision
    return Remote(commit, checksums, lambda name, folder: api.hf_hub_download(repo_id, name, revision=commit, local_dir=folder))


def _model_scope(repo_id: str, revision: str) -> Remote:
    """It tells no commit of a branch: the checksums alone pin the contents."""
    from modelscope_hub import HubApi  # noqa: PLC0415

    api = HubApi(endpoint=os.environ.get("MODELSCOPE_ENDPOINT"))
    found = {one.path: one.sha256 or "" for one in api.list_repo_files(repo_id, "model", revision=revision) if one.type != "tree"}

    def fetch(name: str, folder: Path) -> None:
        api.download_file(repo_id, "model", name, revision=revision, local_dir=folder, expected_sha256=found[name] or None)

    return Remote(revision, found, fetch)


HUBS = {"huggingface": _hugging_face, "modelscope": _model_scope}


def download(hub: str, repo_id: str, revision: str, directory: Path) -> Record:
    """Download into ``directory``, which does not exist yet (or is empty); returns its record.

    Raises ``DownloadError`` with one sentence; the partial folder stays for the next run.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DownloadError(f"{directory} exists already and is no complete checkpoint; name another directory or remove it.")
    partial = directory.with_name(f"{directory.name}.partial")
    with _one_sentence(hub, f"{repo_id} at revision {revision}", partial):
        remote = HUBS[hub](repo_id, revision)
        names = checkpoint_files(remote.checksums, repo_id)
        for name in names:
            remote.fetch(name, partial)
        files = {name: _checked(partial / name, remote.checksums[name], hub) for name in names}
        _remove_others(partial, names)
        record = {"hub": hub, "repo_id": repo_id, "revision": revision, "commit": remote.commit, "files": files}
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    return record


def _checked(path: Path, checksum: str, hub: str) -> dict[str, object]:
    """The file's entry of the record; one with another checksum is removed. checksum: empty where the hub gives none."""
    sha256, blob = hash_file(path)
    if checksum not in ("", sha256, blob):
        path.unlink()
        raise DownloadError(
            f"{path.name} arrived with another checksum than {hub} gives for it and was removed; run the same command again."
        )
    return {"size": path.stat().st_size, "sha256": sha256}


def _remove_others(folder: Path, names: list[str]) -> None:
    """The libraries' own files, and those of another revision that was begun here."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(folder).as_posix() not in names:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


@contextmanager
def _one_sentence(hub: str, what: str, partial: Path) -> Iterator[None]:
    """Whatever a hub's library raises as a ``DownloadError``."""
    try:
        yield
    except (DownloadError, ImportError):
        raise
    except Exception as error:
        chain = _chain(error)
        codes = {one.errno for one in chain if isinstance(one, OSError)}
        status = next(filter(None, (getattr(getattr(one, "response", one), "status_code", None) for one in chain)), None)
        if codes & set(DISK_FULL):
            sentence = f"The disk of {partial} is full; free some space and run the same command again."
        elif status in (401, 403):
            sentence = f"{hub} does not let this machine read {what} (HTTP {status}); correct the name, set its token, or {HAVE_IT}."
        elif status == 404:
            sentence = f"{hub} has no {what} (HTTP 404); correct the name or the revision."
        else:
            reason = " ".join(str(chain[-1]).split())[:160] or type(chain[-1]).__name__
            sentence = (
                f"{what} could not be downloaded from {hub} ({reason}); run the same command again, which keeps the files that are "
                f"whole, or {HAVE_IT}."
            )
        raise DownloadError(sentence) from error
    finally:
        if partial.is_dir() and not any(partial.iterdir()):
            shutil.rmtree(partial)


def _chain(error: BaseException) -> list[BaseException]:
    """The error and those that led to it: libraries wrap what the system told them."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def hash_file(path: Path) -> tuple[str, str]:
    """(SHA-256, SHA-1 of git's blob) of a file, both hexadecimal."""
    sha256, blob = hashlib.sha256(), hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            blob.update(block)
    return sha256.hexdigest(), blob.hexdigest()


def check_directory(directory: Path) -> Record | None:
    """Compare a model directory with the record of its download; one without a record (None) is looked at for its names alone.

    Raises ``DownloadError`` naming a file that is missing or differs.
    """
    path = directory / RECORD
    if not path.is_file():
        names = {one.relative_to(directory).as_posix() for one in directory.rglob("*") if one.is_file()}
        if missing := missing_files(names):
            raise DownloadError(
                f"{directory} has no {missing[0]}; complete it, or name a directory that does not exist to download into it."
            )
        return None
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        for name, entry in record["files"].items():
            file = directory / name
            if not file.is_file() or hash_file(file)[0] != entry["sha256"]:
                raise DownloadError(
                    f"{file} is not the file that was downloaded; remove {directory} and download it again, or remove {RECORD} if you have "
                    "replaced the file yourself."
                )
        return record
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{path} is damaged ({type(error).__name__}); remove {directory} and download it again.") from error


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
