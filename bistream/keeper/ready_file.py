"""The file that exists while new sessions are accepted and holds the server's addresses as JSON. Written by ``scripts/serve.py``."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from bistream.keeper.host import ServerError
from bistream.processes.whole_file import write_whole

logger = logging.getLogger(__name__)


class ReadyFile:
    """path: ``None``: nobody asked for one. Make it before the server starts: it removes the file of a keeper that was killed. Raises
    ``ServerError`` if none can be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is None:
            return
        if path.exists() and not path.is_file():  # a folder, or a device, which must not be removed
            raise ServerError(f"The ready file {path} is not a file; choose another --ready-file.")
        trial = path.with_name(f".{path.name}.trial")  # under its own name it would say that sessions are accepted
        try:
            write_whole(trial, b"{}")
            trial.unlink()
        except OSError as error:
            raise ServerError(
                f"The ready file {path} cannot be written ({error.strerror}); make room there or choose another --ready-file."
            ) from None
        self.withdraw()

    def announce(self, addresses: Mapping[str, str]) -> None:
        """A server goes on without the file where it cannot be written any more."""
        if self._path is not None:
            try:
                write_whole(self._path, json.dumps(dict(addresses)).encode())
            except OSError as error:
                self.withdraw()  # one with other addresses
                logger.error("the ready file %s cannot be written (%s)", self._path, error.strerror)

    def withdraw(self) -> None:
        """Never raises: the server must be stopped properly even if the file is gone."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
