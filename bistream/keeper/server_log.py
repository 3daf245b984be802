"""The server's own log: copied line by line from its output to a file or to the keeper's stderr, the last lines kept for error messages.
``start_failure`` finds in them why a server did not start."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

MODE = 0o640  # of a new file; for collectors of logs in its group
MOST_BYTES = 64 << 20  # of a file, which then gets the suffix .1 in place of an earlier one
_LINES_KEPT = 200
# The reason ends before the stack, whose line breaks the log writes as \n.
_LOAD_FAILURE = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: [\w ]+: (?:TritonModelException: )?(?P<reason>.*?)(?:\\n|\"?$)", re.MULTILINE
)


class ServerLog:
    """path: ``None`` is the keeper's stderr. on_line: sees every line. Raises ``ServerError`` when the file cannot be opened."""

    def __init__(self, path: Path | None, on_line: Callable[[str], None] = lambda line: None) -> None:
        self._path = path
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._is_failing = False
        self._file: BinaryIO | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(path)
        except OSError as error:
            raise ServerError(f"The server's log {path} cannot be written ({error.strerror}); choose another file.") from None

    def copy(self, output: TextIO) -> None:
        """Returns at the end of ``output``. Reads on whatever becomes of the copy: a server whose output is not read would block."""
        with output:
            for line in output:
                self._lines.append(line)
                self._on_line(line)
                self._write(line)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def tail(self, lines: int = _LINES_KEPT) -> str:
        return "".join(list(self._lines)[-lines:])

    def _write(self, line: str) -> None:
        """A line that cannot be written (disk full, reader gone) is lost; the keeper says so once, until one can be written again."""
        try:
            if self._file is not None:
                if self._path is not None and self._file.tell() >= MOST_BYTES and self._path.is_file():
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
                    self._file.close()
                    self._file = _open(self._path)
                self._file.write(line.encode("utf-8", errors="backslashreplace"))
            elif sys.stderr is not None:
                sys.stderr.write(line)
                sys.stderr.flush()
        except (OSError, ValueError) as error:  # ValueError: stderr was closed
            if self._file is not None and not self._is_failing:
                logger.error("the server's log %s cannot be written (%s); lines are lost until there is room", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False


def _open(path: Path) -> BinaryIO:
    """Raises ``OSError``."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE), "ab", buffering=0)


def start_failure(log: str, exit_code: int | None) -> ServerError:
    """The reason why a server ended while starting, from its log: one sentence for each model that refused to load."""
    if "already in use" in log:
        return ServerError("A port of the server is in use; stop the other server or choose other ports.")
    reasons = {match["model"]: match["reason"] for match in _LOAD_FAILURE.finditer(log)}
    if reasons:
        return ServerError("\n".join(f"Model {model} refused to load: {reason}" for model, reason in reasons.items()))
    return ServerError(f"The server ended with exit code {exit_code} while starting; its log ends with:\n{log[-2000:]}")
