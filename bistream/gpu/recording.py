"""Recording calls as CUDA graphs, one per bucket, that share their memory. Knows nothing of what a call launches.

In: a callable that queues the work of a call on the current stream and reads and writes fixed places. Out: a graph that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Launch = Callable[[], object]  # queues a call on the current stream; its result is not used
Result = TypeVar("Result")


class GraphRecorder:
    """Records on one stream, into one pool of memory: at most one of its graphs may run at a time.

    stream: where calls are run and recorded; None: one of its own. pool: shared with other recorders, see ``pool``.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None, pool: Any = None) -> None:
        self.device = device
        self._stream = stream
        self._pool = pool

    @property
    def stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._stream

    @property
    def pool(self) -> Any:
        """Memory that the graphs share, for another recorder whose graphs never run at the same time as these."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def warm_up(self, launch: Launch) -> None:
        """Run once and wait: kernels are compiled, libraries have their workspaces and lazy state exists before anything is recorded."""
        before = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(before)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            launch()
            self.stream.synchronize()
        before.wait_stream(self.stream)

    def record(self, launch: Launch) -> torch.cuda.CUDAGraph:
        """Run once (``warm_up``), then record. Work of the current stream comes before, later work of it after.

        Record the largest bucket first: the others then fit into its memory. Gradients are the caller's matter: call it in the mode
        (``inference_mode``, ``no_grad``) in which the tensors were made.
        """
        self.warm_up(launch)
        return self.capture(launch)[0]

    def capture(self, launch: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Record a call that has run before; also what it returned: tensors that every replay writes anew.

        Other threads may use the device meanwhile.
        """
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        with torch.cuda.device(self.device), capture:
            result = launch()
        return graph, result
