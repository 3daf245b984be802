"""The file that exists while new sessions are accepted and holds the server's addresses as JSON. Written by ``scripts/serve.py``.

It appears with its whole content or not at all: a reader may look at any time, and the disk may be full.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)


class ReadyFile:
    """Make it before the server starts: it removes the file of a keeper that was killed. Raises ``ServerError`` if none can be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{os.getpid()}")
        if path.exists() and not path.is_file():  # a folder, or a device, which must not be removed
            raise ServerError(f"The ready file {path} is not a file; choose another --ready-file.")
        self.withdraw()
        try:
            self._write("{}")
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            self.withdraw()

    def announce(self, addresses: Mapping[str, str]) -> None:
        """A server goes on without the file where it cannot be written any more."""
        try:
            self._write(json.dumps(dict(addresses)))
            self._new.replace(self._path)
        except OSError as error:
            self.withdraw()
            logger.error("%s", self._unwritable(error))

    def withdraw(self) -> None:
        """Never raises: the server must be stopped properly even if the file is gone."""
        for path in (self._path, self._new):
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self, text: str) -> None:
        """Readable by all, as far as the umask allows: it holds addresses only, and a probe may run as another user."""
        with open(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w", encoding="utf-8") as file:
            file.write(text)

    def _unwritable(self, error: OSError) -> ServerError:
        return ServerError(
            f"The ready file {self._path} cannot be written ({error.strerror}); make room there or choose another --ready-file."
        )
