"""An event loop whose time passes at once: when nothing is left to do, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class _Selector(selectors.DefaultSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Without a timer it waits for a file or another thread, as ever."""
        events = super().select(timeout if timeout is None else 0)
        if not events and timeout:
            self.skipped_s += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = _Selector()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Moved by timers alone, so a machine that stands still for a moment does not age anybody."""
        return self._jumps.skipped_s


def run_at_once(work: Coroutine[Any, Any, _Result]) -> _Result:
    """``asyncio.run`` without waiting. For work that needs no socket and no thread: the clock does not wait for them."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
