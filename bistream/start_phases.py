"""How long each part of a start takes: one line of the log for each, in the same form in every process of a server.

    2026-11-24 12:00:07,321 INFO token2wav bistream.start_phases: start: weights of the flow, 0.82 s

``scripts/start_report.py`` makes one table of the lines of all processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

INTERPRETER = "interpreter and first imports"  # the first line of every process
_START_TIME = 19  # of the fields behind the name in /proc/self/stat (man 5 proc, field 22): clock ticks from the boot to this process


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Log how long the block takes. One that raises has no line."""
    began = time.monotonic()
    yield
    took(name, time.monotonic() - began)


def took(name: str, seconds: float) -> None:
    """Log a part that has just ended."""
    logger.info("start: %s, %.2f s", name, seconds)


def interpreter_is_ready() -> None:
    """Log how long ago this process was started. Call it once the log is set up."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    started = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    took(INTERPRETER, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started))
