"""Processes that the keeper starts: they cannot outlive it, a Ctrl-C in its terminal does not reach them, and their output is followed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

LINES_KEPT = 200
JOIN_TIMEOUT_S = 10.0
# Code for ``python -c``: prctl(PR_SET_PDEATHSIG, SIGKILL), then exec the given program.
DIE_WITH_PARENT = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,9); os.execv(sys.argv[1],sys.argv[1:])"


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """command: an absolute path and its arguments. options: more of ``subprocess.Popen``. From a thread that lives as long as the child.
    Raises ``OSError``."""
    return subprocess.Popen(
        [sys.executable, "-c", DIE_WITH_PARENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        encoding="utf-8",
        errors="backslashreplace",
        **options,
    )


def to_stderr(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads our log any more
        sys.stderr.write(line)
        sys.stderr.flush()


class OutputCopy:
    """Passes every line of a child to ``write``, which must not raise: a child whose output is not read blocks. Keeps the last ones."""

    def __init__(self, process: subprocess.Popen[str], write: Callable[[str], None] = to_stderr) -> None:
        self._process = process
        self._write = write
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._thread = threading.Thread(target=self._copy, name="output", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until its output has ended; it may have children that go on."""
        self._thread.join(JOIN_TIMEOUT_S)

    def tail(self, lines: int = LINES_KEPT) -> str:
        return "".join(list(self._lines)[-lines:])

    def last_line(self) -> str:
        """Of all, once the process has ended."""
        self.join()
        return next((line.strip() for line in reversed(self._lines) if line.strip()), "")

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.append(line)
                self._write(line)
