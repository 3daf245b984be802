"""One line of JSON for every session that has ended, for log processors: nothing before it, nothing of the text in it."""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any, TextIO

LOGGER = logging.getLogger("bistream.session_end")


def write_session_line(**fields: Any) -> None:
    """Logged at INFO as ``{"event": "session_end", "time": ..., **fields}``; free text is escaped, so it stays one line."""
    if LOGGER.isEnabledFor(logging.INFO):
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        LOGGER.info(json.dumps({"event": "session_end", "time": now, **fields}, ensure_ascii=True))


def write_plain_lines(stream: TextIO) -> None:
    """Send these lines to ``stream`` without the prefix of the other log lines. Called once by a process that takes sessions."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
