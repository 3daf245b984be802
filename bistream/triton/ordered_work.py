"""Work that takes long, on threads of its own: that of one key in order, that of different keys beside each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class OrderedWork:
    """Thread-safe. ``close`` it at the end."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Condition()  # notified when nothing is left
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by key; the first one of each is running or about to

    def is_busy(self, key: str) -> bool:
        """Whether work of this key runs or waits."""
        with self._lock:
            return key in self._waiting

    def submit(self, key: str, work: Callable[[], None]) -> None:
        """After all earlier work of this key. work: raises nothing. Raises ``RuntimeError`` after ``close``."""
        with self._lock:
            if (waiting := self._waiting.get(key)) is not None:
                waiting.append(work)
                return
            self._pool.submit(self._run, key)
            self._waiting[key] = deque([work])

    def close(self) -> None:
        """Waits for all that was submitted. Idempotent."""
        with self._lock:
            self._lock.wait_for(lambda: not self._waiting)
        self._pool.shutdown()

    def _run(self, key: str) -> None:
        """One after another, so that the keys take turns where there are more of them than threads."""
        with self._lock:
            work = self._waiting[key][0]
        try:
            work()
        finally:
            with self._lock:
                waiting = self._waiting[key]
                waiting.popleft()
                if waiting:
                    self._pool.submit(self._run, key)
                else:
                    del self._waiting[key]
                    self._lock.notify_all()
