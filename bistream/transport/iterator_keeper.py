"""Keeps finished BLS iterators alive until the stub has dropped its references to them.

When a decoupled BLS response iterator has delivered its last response, the stub erases its own reference from a thread that does not
hold the GIL. If that reference is the last one, the iterator and the numpy arrays in its responses are destroyed without
the GIL, and the heap is corrupted ("double free or corruption", an aborted stub or server; seen within seconds with six sessions). So
our reference must be the last one: it is dropped only after a later round trip through the same FIFO queue of the stub.
``is_cancelled`` of a response sender is such a round trip, and the orchestrator calls it every few milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class IteratorKeeper:
    """One for each model process that calls others. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished: list[object] = []

    def keep(self, iterator: object) -> None:
        """Hold an iterator that has delivered its last response."""
        with self._lock:
            self._finished.append(iterator)

    @contextmanager
    def round_trip(self) -> Iterator[None]:
        """Wraps a call that goes through the stub's queue: iterators that finished before it are released after it."""
        with self._lock:
            passed, self._finished = self._finished, []
        try:
            yield
        except BaseException:
            with self._lock:
                self._finished.extend(passed)
            raise
        # ``passed`` is freed here, in a Python thread.
