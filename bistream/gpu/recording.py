"""Records calls as CUDA graphs, one per bucket, that share memory. Independent of what a call launches.

In: a callable that queues the work of a call on the current stream and reads and writes fixed addresses. Out: a graph that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Launch = Callable[[], object]  # queues a call on the current stream; its result is not used
Result = TypeVar("Result")


class GraphRecorder:
    """Records on one stream, into one memory pool: at most one of its graphs may run at a time.

    stream: where calls are run and recorded; None: a new one.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self.device = device
        self._stream = stream
        self._pool: Any = None

    @property
    def stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._stream

    def warm_up(self, launch: Launch) -> None:
        """Run once and wait, so that kernels are compiled and library workspaces and lazy state exist before anything is recorded."""
        before = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(before)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            launch()
            self.stream.synchronize()
        before.wait_stream(self.stream)

    def record(self, launch: Launch) -> torch.cuda.CUDAGraph:
        """Run once (``warm_up``), then record. Ordered after earlier and before later work of the current stream.

        Record the largest bucket first: the others then fit into its memory. The gradient mode is the caller's: call it in the mode
        (``inference_mode``, ``no_grad``) in which the tensors were made.
        """
        self.warm_up(launch)
        return self.capture(launch)[0]

    def capture(self, launch: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Record a call that has run before. Also returns its result: tensors that every replay overwrites.

        Other threads may use the device during the capture. Before the first one, unused memory of this process goes back to the device.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()
        # Not ``torch.cuda.graph``: it waits for the device and gives all unused memory back before each of hundreds of graphs.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                result = launch()
            finally:
                graph.capture_end()
        return graph, result
