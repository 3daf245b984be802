"""Records functions as CUDA graphs that share one pool of memory, which is right for graphs that never run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Recorder:
    """What a recorded function reads and writes for others must live outside the pool: the next graph uses its memory again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None  # one for all: libraries keep a workspace for every stream

    def record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run ``function`` once, so that everything is compiled, chosen and loaded, and record it then."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            function()
            stream.synchronize()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                function()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return graph
