"""A small thread pool for short blocking calls to the models (text, cancels, lease renewals), so that requests never wait.

The calls of one session stay in order: one thread at a time serves a session, and scheduling it again meanwhile
adds another round. Used by the orchestrator alone.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class Deliverable(Protocol):
    def deliver(self) -> None:
        """Carry out what is due now; returns at once when nothing is."""


class DeliveryPool:
    """``schedule`` never blocks; ``deliver`` is called at least once afterwards, and never concurrently for one task."""

    def __init__(self, threads: int) -> None:
        self._queue: queue.SimpleQueue[Deliverable | None] = queue.SimpleQueue()
        self._lock = threading.Condition()  # notified when nothing is left to do
        self._busy: set[Deliverable] = set()  # queued or being served
        self._again: set[Deliverable] = set()  # scheduled while busy
        self._threads = [threading.Thread(target=self._serve, name=f"bistream-deliver-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def schedule(self, task: Deliverable) -> None:
        with self._lock:
            if task in self._busy:
                self._again.add(task)
                return
            self._busy.add(task)
        self._queue.put(task)

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """A separate function, so that a waiting thread holds no task whose session is over. False: the pool is closed."""
        task = self._queue.get()
        if task is None:
            return False
        try:
            task.deliver()
        except Exception:
            logger.exception("delivery failed")
        with self._lock:
            if task not in self._again:
                self._busy.discard(task)
                if not self._busy:
                    self._lock.notify_all()
                return True
            self._again.discard(task)
        self._queue.put(task)
        return True

    def close(self) -> None:
        """Finish the scheduled work, within ``CLOSE_TIMEOUT_S``, then stop the threads."""
        with self._lock:
            self._lock.wait_for(lambda: not self._busy, timeout=CLOSE_TIMEOUT_S)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=CLOSE_TIMEOUT_S)
