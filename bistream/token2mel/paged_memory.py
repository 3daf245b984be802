"""State of the solver on pages: what a batch reads and writes while it is computed. Of both flows.

Which page belongs to whom is decided by ``page_pool``; the tensors are those of ``StatePages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bistream.token2mel.memory import SolverMemory, StepMemory
from bistream.token2mel.state_rows import StateRows


@dataclass(frozen=True)
class PageTables:
    """Pages of one batch, as index tensors (int64) on the device.

    context: [S, table_chunks], aligned to the right, ``ZERO_PAGE`` where there is none.
    last: [S], the page of the chunk before the new part (``ZERO_PAGE`` at the start of a sequence).
    keep: [S, complete_chunks], where each complete chunk of the new part goes; ``SCRATCH_PAGE`` where it is not kept.
    """

    context: Tensor
    last: Tensor
    keep: Tensor


class StatePages(Protocol):
    """The tensors that page numbers index, as far as the solver knows them.

    total: pages that can be owned.
    """

    total: int
    chunk_frames: int
    conv_history: int

    def context_of(self, step: int) -> StateRows:
        """Normalised block inputs of a solver step, [blocks, 2, pages, chunk_frames, width]."""

    def tail_of(self, step: int) -> StateRows:
        """Last inputs of all causal convolutions of a solver step, side by side, [2, pages, conv_history, ...]."""

    def memory(self, tables: PageTables) -> SolverMemory:
        """The memory of one batch."""


class PagedMemory:
    """``memory.SolverMemory`` on pages: reads the context of a batch, writes its complete chunks."""

    def __init__(self, pages: StatePages, tables: PageTables) -> None:
        self._pages = pages
        self.sessions, self.table_chunks = tables.context.shape
        self.complete_chunks = tables.keep.shape[1]
        self.context = tables.context.flatten()
        self.last = tables.last
        self.keep = tables.keep.flatten()

    def step(self, index: int) -> StepMemory:
        return _PagedStepMemory(self, self._pages, index)

    def extend(self, store: StateRows, x: Tensor) -> Tensor:
        """store: [rows, pages, chunk, C]; x: [rows * S, T, C]. Prepends the context and keeps the complete chunks."""
        rows, _, chunk, channels = store.values.shape
        if self.complete_chunks:
            store.write(1, self.keep, x[:, : self.complete_chunks * chunk].reshape(rows, -1, chunk, channels))
        if not self.table_chunks:
            return x
        context = store.read(1, self.context).to(x.dtype).view(rows * self.sessions, self.table_chunks * chunk, channels)
        return torch.cat([context, x], dim=1)

    def tails(self, x: Tensor, chunk: int, frames: int) -> Tensor:
        """[B, T, C] -> [B, complete_chunks, frames, C]: the last frames of each complete chunk."""
        complete = x[:, : self.complete_chunks * chunk].reshape(len(x), self.complete_chunks, chunk, -1)
        return complete[:, :, chunk - frames :]


class _PagedStepMemory:
    """Convolution inputs are collected over the step, so that their state is one gather and one scatter."""

    def __init__(self, memory: PagedMemory, pages: StatePages, step: int) -> None:
        self._memory = memory
        self._chunk_frames, self._conv_history = pages.chunk_frames, pages.conv_history
        self._context = pages.context_of(step)
        self._tail = pages.tail_of(step)
        self._history = self._tail.read(1, memory.last).flatten(0, 1).flatten(2)  # [2 * S, history, channels]
        self._block = 0
        self._channel = 0
        self._kept: list[Tensor] = []

    def extend_conv(self, x: Tensor) -> Tensor:
        memory = self._memory
        first, self._channel = self._channel, self._channel + x.shape[-1]
        if memory.complete_chunks:
            self._kept.append(memory.tails(x, self._chunk_frames, self._conv_history))
        return torch.cat([self._history[:, :, first : self._channel].to(x.dtype), x], dim=1)

    def extend_attention(self, x: Tensor) -> Tensor:
        block, self._block = self._block, self._block + 1
        return self._memory.extend(self._context[block], x)

    def end_step(self) -> None:
        if self._kept:
            shape = self._tail.values.shape
            kept = torch.cat(self._kept, dim=-1)  # [2 * S, complete, history, channels]
            self._tail.write(1, self._memory.keep, kept.reshape(shape[0], -1, *shape[2:]))
