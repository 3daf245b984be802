"""A line on the terminal that shows how long something has taken, for waits of which no share is known."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from tqdm import tqdm

INTERVAL_S = 1.0
DELAY_S = 2.0  # what is done by then needs no line


class Waiting:
    """Shown from ``DELAY_S`` on until ``done``, or the end of the context; nothing where standard error is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_done = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="waiting", daemon=True)
            self._thread.start()

    def goes_on(self, what: str) -> None:
        """With the next step; the time is that of all."""
        self._what = what

    def done(self) -> None:
        """Idempotent."""
        self._is_done.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.done()

    def _show(self) -> None:
        if self._is_done.wait(DELAY_S):
            return
        with tqdm(bar_format="{desc} [{elapsed}]", desc=self._what, leave=False) as line:
            while not self._is_done.wait(INTERVAL_S):
                line.set_description_str(self._what)
