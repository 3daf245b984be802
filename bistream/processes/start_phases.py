"""How long each part of a start takes: one line of the log for each, in the same form in every process of a server.

2026-11-24 12:00:07,321 INFO token2wav bistream.processes.start_phases: start: weights of the flow, 0.82 s
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

INTERPRETER = "interpreter and first imports"  # the first line of every process
# Of the format of ``triton.startup``: a part that has ended, or how far the compilation of kernels is (``gpu/compile_ahead.py``).
_PROGRESS = re.compile(r" INFO (?P<model>\w+) [\w.]+: (?:start: (?P<part>.+), \d+\.\d+ s|(?P<kernels>.*\d+ of \d+ kernels compiled))$")
STARTED_AT = "BISTREAM_STARTED_AT"  # environment variable: seconds since 1970, for a program that took a shell's place (exec)
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


def progress_in(line: str) -> str | None:
    """``token2wav: weights of the flow`` for a line of a log in which a model has gone on with its start, else ``None``."""
    found = _PROGRESS.search(line.rstrip())
    return None if found is None else f"{found['model']}: {found['part'] or found['kernels']}"


def interpreter_is_ready() -> None:
    """Log how long ago this program was started. Call it once the log is set up.

    A program that took a shell's place has the shell's age, in which everything may have been installed; so the shell says when it ended.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    if STARTED_AT in os.environ:  # its children inherit it, and are younger
        age = min(age, time.time() - float(os.environ[STARTED_AT]))
    took(INTERPRETER, max(0.0, age))
