"""Lines that clients cause in the log: a few for each client, and how many were left out."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 10.0
MAX_CLIENTS = 10_000  # the one that was heard of least recently is forgotten


@dataclass(slots=True)
class _Window:
    ends_at: float
    lines: int = 0
    left_out: int = 0


class Lines:
    """At most ``most`` lines of each client in ten seconds."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def take(self, client: str) -> int | None:
        """How many lines of this client were left out before this one; None: this one is left out, too."""
        now, left_out = self._clock(), 0
        window = self._windows.get(client)
        if window is None or now >= window.ends_at:
            left_out = 0 if window is None else window.left_out
            window = self._windows[client] = _Window(now + WINDOW_S)
            if len(self._windows) > MAX_CLIENTS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(client)
        if window.lines >= self._most:
            window.left_out += 1
            return None
        window.lines += 1
        return left_out


class QuietLog:
    """Warnings about clients: one for each of them in ten seconds."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._lines = Lines(1, clock)

    def warn(self, client: str, sentence: str, error: BaseException | None = None) -> None:
        """client: its address. error: with its trace: a fault of this program."""
        left_out = self._lines.take(client)
        if left_out is not None:
            more = f" ({left_out} such lines were left out)" if left_out else ""
            self._logger.warning("the client %s: %s%s", client, sentence, more, exc_info=error)
