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
    """path: ``None``: nobody asked for one. Make it before the server starts: it removes the file of a keeper that was killed. Raises
    ``ServerError`` if none can be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None and path.exists() and not path.is_file():  # a folder, or a device, which must not be removed
            raise ServerError(f"The ready file {path} is not a file; choose another --ready-file.")
        try:
            self._write({})
        except OSError as error:
            raise ServerError(
                f"The ready file {path} cannot be written ({error.strerror}); make room there or choose another --ready-file."
            ) from None

    def announce(self, addresses: Mapping[str, str]) -> None:
        """A server goes on without the file where it cannot be written any more."""
        try:
            self._write(addresses)
        except OSError as error:
            logger.error("the ready file %s cannot be written (%s)", self._path, error.strerror)

    def withdraw(self) -> None:
        """Never raises: the server must be stopped properly even if the file is gone."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _write(self, addresses: Mapping[str, str]) -> None:
        if self._path is None:
            return
        self.withdraw()  # one with other addresses
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(dict(addresses)), encoding="utf-8")
            if addresses:  # else it was a trial
                new.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                new.unlink()
