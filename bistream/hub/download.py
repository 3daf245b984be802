"""Makes a model directory of a hub's repository: all of it, checked, under its name; or nothing under its name.

Everything is collected in ``<directory>.partial``. A file is moved to its place there only once size and checksum are those that
the hub gave; the folder gets its name, by rename, only once it is whole. What an earlier run left is used: its listing (so that a
branch which has moved on meanwhile does not mix two versions), its whole files, and parts of files.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bistream.hub import failures, manifest
from bistream.hub.listing import DownloadError, Hub, Listing, RemoteFile, check_paths, checkpoint_files, missing_files
from bistream.hub.manifest import FileRecord, Manifest

PARTIAL_SUFFIX = ".partial"
SCRATCH = ".download"  # in the partial folder: lock, listing, parts
Say = Callable[[str], None]


def download(hub: Hub, repo_id: str, revision: str, directory: Path, everything: bool, say: Say) -> Manifest:
    """Download into ``directory``, which does not exist yet (or is empty). ``everything``: not only what the server reads.

    Raises ``DownloadError`` with one sentence; the partial folder stays for the next run.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DownloadError(f"{directory} exists already and is no complete checkpoint; name another directory or remove it.")
    partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
    try:
        with _locked(partial / SCRATCH):
            listing = _listing(hub, repo_id, revision, partial / SCRATCH)
            check_paths(listing)
            files = listing.files if everything else checkpoint_files(listing)
            records = _collect(hub, listing, files, partial, say)
            _finish(partial, directory, listing, records)
    except OSError as error:
        if failures.disk_full(error) is None:
            raise
        raise DownloadError(
            f"The disk of {partial} is full; free some space and run the same command again, which continues where this one stopped."
        ) from error
    return Manifest(listing.hub, listing.repo_id, listing.revision, listing.commit, records)


def check_directory(directory: Path) -> Manifest | None:
    """Check a model directory that is there: with its manifest, or where it has none (None), for its names alone.

    Raises ``DownloadError`` naming a file that is missing or differs.
    """
    known = manifest.read(directory)
    if known is not None:
        manifest.check(directory, known)
        return known
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    missing = missing_files(names)
    if missing:
        raise DownloadError(f"{directory} has no {missing[0]}; complete it, or name a directory that does not exist to download into it.")
    return None


@contextmanager
def _locked(scratch: Path) -> Iterator[None]:
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"Another download into {scratch.parent} is running; wait for it, or end it.") from None
        try:
            yield
        finally:
            if {path.name for path in scratch.glob("*")} == {"lock"}:  # not even a listing came
                (scratch / "lock").unlink()
                scratch.rmdir()
                if not any(scratch.parent.iterdir()):
                    scratch.parent.rmdir()


def _listing(hub: Hub, repo_id: str, revision: str, scratch: Path) -> Listing:
    """The listing of the earlier run where it was for the same thing, else the hub's."""
    path = scratch / "listing.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(RemoteFile(**file) for file in values.pop("files"))
        earlier = Listing(**values, files=files)
        if (earlier.hub, earlier.repo_id, earlier.revision) == (hub.name, repo_id, revision):
            return earlier
    except (OSError, ValueError, TypeError, KeyError):
        pass  # none, or one that was cut off
    listing = hub.list_files(repo_id, revision)
    path.write_text(json.dumps(asdict(listing)), encoding="utf-8")
    return listing


def _collect(hub: Hub, listing: Listing, files: tuple[RemoteFile, ...], partial: Path, say: Say) -> dict[str, FileRecord]:
    """Fetch what is missing into ``partial``; returns the record of every file."""
    records: dict[str, FileRecord] = {}
    for file in files:
        path = partial / file.path
        record = manifest.record_of(path, file) if path.is_file() else None
        if record is not None:
            records[file.path] = record
    todo = [file for file in files if file.path not in records]
    _check_space(todo, partial)
    for number, file in enumerate(todo, 1):
        say(f"{number} of {len(todo)}: {file.path}, {file.size / 1e6:.1f} MB")
        fetched = hub.fetch(listing, file, partial / SCRATCH)
        record = manifest.record_of(fetched, file)
        if record is None:
            fetched.unlink()
            raise failures.wrong_checksum(file.path, listing.hub)
        path = partial / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(path)
        records[file.path] = record
    return records


def _check_space(todo: list[RemoteFile], partial: Path) -> None:
    """Raises ``DownloadError`` where the disk has no room for what is still to come."""
    parts = [(path.relative_to(partial).as_posix(), path.stat().st_size) for path in (partial / SCRATCH).rglob("*") if path.is_file()]
    there = sum(min(file.size, sum(size for name, size in parts if file.content_id in name)) for file in todo)
    needed = sum(file.size for file in todo) - there
    free = shutil.disk_usage(partial).free
    if needed > free:
        raise DownloadError(
            f"{partial} needs {needed / 1e9:.2f} GB more, but its disk has {free / 1e9:.2f} GB free; free some space and run the same "
            "command again, or name a directory on another disk."
        )


def _finish(partial: Path, directory: Path, listing: Listing, records: dict[str, FileRecord]) -> None:
    """Write the manifest, drop what does not belong to the checkpoint, and give the folder its name."""
    shutil.rmtree(partial / SCRATCH)
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(partial).as_posix() not in records:
            path.unlink()  # of another revision that was begun here
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    manifest.write(partial, Manifest(listing.hub, listing.repo_id, listing.revision, listing.commit, records))
    if directory.exists():
        directory.rmdir()
    partial.rename(directory)
