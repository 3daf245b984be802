"""The file of the server's own log, and the reason in a log why a server did not start."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

MODE = 0o640  # of a new file; for collectors of logs in its group
MOST_BYTES = 64 << 20  # of a file, which then gets the suffix .1 in place of an earlier one
# The reason ends before the stack, whose line breaks the log writes as \n.
_LOAD_FAILURE = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: [\w ]+: (?:TritonModelException: )?(?P<reason>.*?)(?:\\n|\"?$)", re.MULTILINE
)


class LogFile(RotatingFileHandler):
    """Raises ``ServerError`` when the file cannot be opened. A line that cannot be written (disk full) is lost; the keeper says so once."""

    def __init__(self, path: Path) -> None:
        self._is_failing = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ServerError(f"The server's log {path} cannot be written ({error.strerror}); choose another file.") from None

    def write(self, line: str) -> None:
        self.handle(logging.makeLogRecord({"msg": line.rstrip("\n")}))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
        return open(file, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._is_failing:
            logger.error("the server's log %s cannot be written; lines are lost until there is room", self.baseFilename)
        self._is_failing = True


def start_failure(log: str, exit_code: int | None) -> ServerError:
    """The reason why a server ended while starting, from its log: one sentence for each model that refused to load."""
    if "already in use" in log:
        return ServerError("A port of the server is in use; stop the other server or choose other ports.")
    reasons = {match["model"]: match["reason"] for match in _LOAD_FAILURE.finditer(log)}
    if reasons:
        return ServerError("\n".join(f"Model {model} refused to load: {reason}" for model, reason in reasons.items()))
    return ServerError(f"The server ended with exit code {exit_code} while starting; its log ends with:\n{log[-2000:]}")
