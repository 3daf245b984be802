"""Recording of CUDA graphs that share their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Recorder:
    """Graphs of one recorder are never replayed at the same time, so that they can share working memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run ``launch`` once, so that everything is compiled and loaded, then record it."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            launch()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                launch()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return graph
