"""When nothing has come for a while: one timer for a text in many pieces. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PauseTimer:
    """``restart`` with each piece, ``stop`` where no pause counts."""

    def __init__(self, after_s: float, on_pause: Callable[[], None]) -> None:
        """after_s: 0: never."""
        self._after_s = after_s
        self._on_pause = on_pause
        self._handle: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def restart(self) -> None:
        """The timer runs on and looks at the time when it rings: a new one for each piece would cost more than the piece."""
        if self._after_s <= 0:
            return
        loop = asyncio.get_running_loop()
        self._rings_at = loop.time() + self._after_s
        if self._handle is None:
            self._handle = loop.call_at(self._rings_at, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._rings_at:
            self._handle = loop.call_at(self._rings_at, self._ring)
        else:
            self._handle = None
            self._on_pause()
