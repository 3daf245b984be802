"""The queue of a runner's work on its device: a CUDA stream, events for the steps in flight, and graphs recorded on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from bistream.gpu.recording import GraphRecorder

T = TypeVar("T")


class WorkQueue:
    """On the CPU work runs synchronously: no call waits and none is recorded."""

    def __init__(self, device: torch.device, depth: int) -> None:
        self.device = device
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._events = [torch.cuda.Event() for _ in range(depth)] if on_gpu else []  # type: ignore[no-untyped-call]
        self._recorder = None if self._stream is None else GraphRecorder(device, self._stream)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))  # weights were made there

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Kernels launched inside this context go to this queue."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def mark(self, entry: int) -> None:
        """Record an event for ``entry`` after the work queued so far."""
        if self._stream is not None:
            self._events[entry].record(self._stream)

    def wait(self, entry: int) -> None:
        """Wait until the work before the last ``mark`` of ``entry`` is done; returns at once for an entry that was never marked."""
        if self._stream is not None:
            self._events[entry].synchronize()

    def finish(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def record(self, compute: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Record ``compute``. Returns a function that replays the graph, and its result: tensors that each replay overwrites.

        ``compute`` must have run before, or its compilation would be recorded.
        """
        assert self._recorder is not None
        graph, result = self._recorder.capture(compute)
        return graph.replay, result
