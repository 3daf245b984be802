"""How long the stages of a pipeline in one process took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimes:
    """Seconds spent in each stage, summed over all sessions; stages run concurrently, so the sum can exceed the wall time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = {"voice": 0.0, "language_model": 0.0, "token2wav": 0.0}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[stage] += time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)
