"""The shared-memory files of one server: their names, the proof that their keeper lives, and the removal of what dead keepers left.

Every name begins with a prefix that is random for each start. A process id would not do: keepers in containers that share
``/dev/shm`` cannot see each other's processes, and the one that comes back after a crash often has the same id. A keeper holds an
``flock`` on ``<prefix>lock`` for as long as the files are in use. The kernel releases it when the process ends, however it ends, and
the lock belongs to the file, so that it also works between containers. Only files whose lock can be taken are swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

from bistream.keeper.host import SHARED_MEMORY, ServerError
from bistream.keeper.served_models import end_orphans

_NAME = "bistream_"
_LOCK = "lock"
# Match the full name: a shorter prefix could match a live keeper's files.
_LOCK_NAME = re.compile(rf"{_NAME}\d+_[0-9a-f]{{16}}_{_LOCK}")


class SharedMemoryClaim:
    """The name prefix of one server's files, claimed until ``release``, and the directory ``control`` of ``control_files``.

    Raises ``ServerError`` when no file can be made there. The process id in the name is for people; nothing relies on it.
    """

    def __init__(self, directory: Path = SHARED_MEMORY) -> None:
        self._directory = directory
        self.prefix = f"{_NAME}{os.getpid()}_{secrets.token_hex(8)}_"
        self.control = directory / f"{self.prefix}control"
        self._lock: int | None = None
        lock = directory / f"{self.prefix}{_LOCK}"
        new = directory / f".{lock.name}"
        try:
            self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(lock)  # so that a sweeper finds it locked
            self.control.mkdir(mode=0o700)
        except OSError as error:
            new.unlink(missing_ok=True)
            self.release()
            raise ServerError(
                f"No file can be made in {directory} ({error.strerror}); make room there, or mount a larger one (docker run --shm-size)."
            ) from None

    def release(self) -> None:
        """Remove the files, the lock last. Idempotent."""
        if self._lock is not None:
            _remove_all(self._directory, self.prefix)
            os.close(self._lock)
            self._lock = None


def sweep_shared_memory(directory: Path = SHARED_MEMORY) -> None:
    """End the model processes of keepers that are dead, and remove their files. Files without a lock file are left alone: whose they
    are cannot be told.
    """
    for path in directory.glob(f"{_NAME}*_{_LOCK}"):
        if not _LOCK_NAME.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _try_lock(lock):  # held while the files go, so that a second sweeper leaves them alone
                    prefix = path.name.removesuffix(_LOCK)
                    end_orphans(prefix)
                    _remove_all(directory, prefix)
            finally:
                os.close(lock)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_all(directory: Path, prefix: str) -> None:
    """The lock goes last, and only when nothing else is left: while it exists, the rest can still be swept."""
    lock = directory / f"{prefix}{_LOCK}"
    for path in set(directory.glob(f"{prefix}*")) - {lock}:
        _remove(path)
    if set(directory.glob(f"{prefix}*")) == {lock}:
        _remove(lock)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
