"""An asyncio event loop in a thread of its own, for code that other threads call. Used by the orchestrator alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
ABANDON_S = 1.0  # for coroutines that are cancelled at the end, because a model never answered them


class EventLoop:
    """Thread-safe, but for ``start_task``."""

    def __init__(self, name: str) -> None:
        """name: of the thread."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps weak references only
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Schedule a call on the loop, after all earlier ones. False: the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result | None:
        """Run it in the loop and wait for its result. None: the loop is closed. Not for the loop's own thread."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except CancelledError:
            return None
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            coroutine.close()
            return None

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """For the loop's own thread. What it raises is logged."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def close(self) -> None:
        """Cancel what still runs, and end the thread. Idempotent."""
        self.call(self._loop.stop)
        self._thread.join()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task failed; the others continue", exc_info=error)

    def _serve(self) -> None:
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=ABANDON_S))
        self._loop.close()
