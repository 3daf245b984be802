"""Processes that the keeper starts: they cannot outlive it, a Ctrl-C in its terminal does not reach them, and their output is followed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

LINES_KEPT = 100
JOIN_TIMEOUT_S = 5.0
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


class OutputCopy:
    """Keeps the last lines of a child and, unless ``is_quiet``, copies all to our standard error."""

    def __init__(self, process: subprocess.Popen[str], label: str = "", is_quiet: bool = False) -> None:
        """label: in front of each line."""
        self._process = process
        self._label = label
        self.is_quiet = is_quiet
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._thread = threading.Thread(target=self._copy, name="output", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until its output has ended; it may have children that go on."""
        self._thread.join(JOIN_TIMEOUT_S)

    def tail(self, lines: int) -> str:
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
                if not self.is_quiet:
                    with contextlib.suppress(OSError, ValueError):  # nobody reads our log any more
                        sys.stderr.write(self._label + line)
                        sys.stderr.flush()
