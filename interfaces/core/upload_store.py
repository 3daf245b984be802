"""Uploaded voices, in memory and, with a folder, on disk: a voice is one file, written whole or not at all. Several processes may share
the folder; what one of them has written or deleted the others find at their next look-up."""

from __future__ import annotations

import os
import re
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from interfaces.core.voice import UPLOAD, Voice

_ID = re.compile(r"voice_[0-9a-f]{32}\Z")
_SETTLED_NS = 2_000_000_000  # a folder that has not changed for so long shows a change in its time; clocks of file systems are coarse


class UploadStore:
    """Thread-safe as far as single calls go; who adds and deletes has a lock."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._voices: dict[str, Voice] = {}
        self._seen_ns = -1  # the folder's time of modification when it was last read

    def all(self) -> list[Voice]:
        """The oldest first."""
        if self._folder is not None:
            self._read_folder(self._folder)
        return sorted(self._voices.values(), key=lambda voice: (voice.created_at, voice.id))

    def put(self, voice: Voice) -> None:
        if self._folder is not None:
            _write(self._folder, voice)
        self._voices[voice.id] = voice

    def remove(self, voice_id: str) -> None:
        if self._folder is not None:
            (self._folder / f"{voice_id}.npz").unlink(missing_ok=True)
        self._voices.pop(voice_id, None)

    def _read_folder(self, folder: Path) -> None:
        try:
            changed_ns = folder.stat().st_mtime_ns
        except FileNotFoundError:
            self._voices.clear()
            return
        if changed_ns == self._seen_ns:
            return
        names = {path.stem for path in folder.glob("voice_*.npz") if _ID.match(path.stem)}
        for gone in set(self._voices) - names:
            self._voices.pop(gone, None)  # another thread may have looked as well
        for name in names - set(self._voices):
            if (voice := _read(folder / f"{name}.npz")) is not None:
                self._voices[name] = voice
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1


def _write(folder: Path, voice: Voice) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        assert voice.samples is not None, "an upload"
        owner = "" if voice.owner is None else f"key:{voice.owner}"
        np.savez(
            file,
            samples=voice.samples,
            texts=np.array([voice.name, voice.transcript or "", owner, voice.secret_digest, voice.address]),
            created_at=np.array(voice.created_at),
        )
    os.replace(file.name, folder / f"{voice.id}.npz")


def _read(path: Path) -> Voice | None:
    """None: deleted meanwhile, or not a file of ours."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            texts = [str(text) for text in stored["texts"]]
            name, transcript, owner, digest, address = [*texts, "", ""][:5]  # earlier files have three texts
            samples = stored["samples"].astype(np.float32).reshape(-1)
            created_at = int(stored["created_at"])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    owned = owner.removeprefix("key:") or None
    return Voice(path.stem, name, samples, transcript or None, None, owned, created_at, UPLOAD, digest, address)
