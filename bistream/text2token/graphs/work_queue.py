"""The queue of a runner's work on its device: a CUDA stream, events for the steps in flight, and graphs recorded on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from bistream.gpu.recording import GraphRecorder

T = TypeVar("T")


class WorkQueue:
    """On the CPU work is done at once: nothing waits and nothing is recorded."""

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
        """What is launched within goes to this queue."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def mark(self, entry: int) -> None:
        """Everything queued so far belongs to ``entry``."""
        if self._stream is not None:
            self._events[entry].record(self._stream)

    def wait(self, entry: int) -> None:
        """Until what ``mark`` marked is done; at once for an entry that was never marked."""
        if self._stream is not None:
            self._events[entry].synchronize()

    def finish(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def record(self, compute: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """A function that runs ``compute`` again from one graph, and what ``compute`` returned: tensors that each run writes anew.

        ``compute`` must have run before, or its compilation would be recorded.
        """
        assert self._recorder is not None
        graph, result = self._recorder.capture(compute)
        return graph.replay, result
