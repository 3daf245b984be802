"""Runs a network on batches of a few sizes, on a GPU as recorded graphs: recordings of any lengths in, a row of output for each out.

A GPU takes longer to be told the small kernels of an analysis than to compute them, and its matrix library takes long over each new shape;
a graph of a known size has both behind it. Recordings are filled up with zeros, which the network must leave aside by their lengths. Loads
torch.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.gpu.precision import exact_float32
from bistream.gpu.recording import GraphRecorder
from bistream.types import FloatArray

logger = logging.getLogger(__name__)

FRAMES = (200, 400, 600, 800, 1000, 1600, 2400, 3000)  # of 10 ms
ROWS = (1, 2, 4, 8)
MOST_FRAMES = 4800  # of one batch: the speaker encoder's first layers take 10 kB for each frame, several times
UNIT = 200  # what a batch beyond these sizes is a multiple of
BatchNetwork = Callable[[Tensor, Tensor], Tensor]  # float32 [B, T, bins], zero beyond lengths int [B] -> [B, ...]


@dataclass(frozen=True, order=True)
class BatchSize:
    frames: int
    rows: int

    @property
    def area(self) -> int:
        return self.frames * self.rows


@dataclass
class _Call:
    """What a batch of one size reads and writes; without a graph the network is called."""

    features: Tensor
    lengths: Tensor
    graph: torch.cuda.CUDAGraph | None = None
    output: Tensor | None = None


def batch_sizes(device: torch.device) -> list[BatchSize]:
    """Those to record, smallest first; none on a CPU, which gains nothing by them."""
    if device.type != "cuda":
        return []
    sizes = (BatchSize(frames, rows) for frames, rows in itertools.product(FRAMES, ROWS))
    return sorted((size for size in sizes if size.area <= MOST_FRAMES), key=lambda size: (size.area, size))


def frames_for(count: int) -> int:
    """The number of frames that ``count`` are filled up to on a GPU."""
    return next((frames for frames in FRAMES if frames >= count), -(-count // UNIT) * UNIT)


def size_for(lengths: Sequence[int], sizes: Sequence[BatchSize]) -> BatchSize:
    """The first of ``sizes`` that holds recordings of so many frames together; one of their own where there is none."""
    longest, count = max(lengths), len(lengths)
    fitting = (size for size in sizes if size.frames >= longest and size.rows >= count)
    return next(fitting, BatchSize(-(-longest // UNIT) * UNIT, count))


def pieces(lengths: Sequence[int], sizes: Sequence[BatchSize]) -> Iterator[list[int]]:
    """Every position once, by length: those of a piece share a batch, one of ``sizes`` where there are any, of at most ``MOST_FRAMES``
    unless one recording is longer."""
    piece: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda position: lengths[position]):
        size = size_for([lengths[other] for other in (*piece, position)], sizes)
        if piece and (size.area > MOST_FRAMES or (sizes and size not in sizes)):
            yield piece
            piece = []
        piece.append(position)
    if piece:
        yield piece


class FixedSizes:
    """Thread-safe: one batch at a time. Always float32 without TF32."""

    def __init__(self, name: str, network: BatchNetwork, bins: int, device: torch.device, sizes: Sequence[BatchSize] = ()) -> None:
        """name: for the log. sizes: as of ``batch_sizes``; on a GPU they are recorded."""
        self._name, self._network, self._bins, self._device = name, network, bins, device
        self._sizes = sizes
        self._lock = threading.Lock()
        self._calls: dict[BatchSize, _Call] = {}
        if sizes and device.type == "cuda":
            self._record()

    def __call__(self, frames: Sequence[Tensor | FloatArray]) -> list[NDArray[Any]]:
        """float32 [T, bins] each, of any device or none -> their rows of the network's output."""
        found: dict[int, NDArray[Any]] = {}
        with self._lock:
            for piece in pieces([len(one) for one in frames], self._sizes):
                rows = self._run([frames[position] for position in piece])
                found.update(zip(piece, rows, strict=True))
        return [found[position] for position in range(len(frames))]

    @torch.inference_mode()
    def _run(self, frames: Sequence[Tensor | FloatArray]) -> NDArray[Any]:
        size = size_for([len(one) for one in frames], self._sizes)
        call = self._calls.get(size) or self._empty(size)
        call.features.zero_()
        for row, one in zip(call.features, frames, strict=False):
            row[: len(one)] = torch.as_tensor(one, device=self._device)
        # Rows that nobody asked for are as long as the batch, so that nothing is divided by zero.
        lengths = [len(one) for one in frames] + [size.frames] * (size.rows - len(frames))
        call.lengths.copy_(torch.tensor(lengths))
        if call.graph is None:
            with exact_float32():
                output = self._network(call.features, call.lengths)
        else:
            assert call.output is not None
            call.graph.replay()
            output = call.output
        rows: NDArray[Any] = output[: len(frames)].cpu().numpy()
        return rows

    def _empty(self, size: BatchSize) -> _Call:
        features = torch.zeros(size.rows, size.frames, self._bins, device=self._device)
        return _Call(features, torch.full((size.rows,), size.frames, device=self._device))

    @torch.inference_mode()
    def _record(self) -> None:
        """Largest first: the others fit into its memory."""
        began, recorder = time.monotonic(), GraphRecorder(self._device)
        with exact_float32():
            for size in sorted(self._sizes, key=lambda size: -size.area):
                call = self._empty(size)
                launch = partial(self._network, call.features, call.lengths)
                recorder.warm_up(launch)
                call.graph, call.output = recorder.capture(launch)
                self._calls[size] = call
        torch.cuda.empty_cache()  # memory that the first runs took outside the graphs' pool
        logger.info("%s: graphs for %d sizes of batch ready after %.1f s", self._name, len(self._calls), time.monotonic() - began)
