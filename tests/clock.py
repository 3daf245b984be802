"""Time in tests: a clock that a test moves, and an event loop whose time passes at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class ManualClock:
    """It stands still until a test sets ``now``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Without a timer it waits for a file or another thread, as ever."""
        events = super().select(timeout if timeout is None else 0)
        if not events and timeout:
            self.skipped_s += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """When nothing is left to do, its clock jumps to the next timer."""

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
