"""Spans on their way through the solver, which may stop after any of its steps and go on later from where it was.

Between two steps other spans may be computed, by the same runner. What a batch in progress needs afterwards is in its own state and in
the pages of its spans: nobody else may write those pages, or be given them, until it has ended (``state.FlowState.is_computing``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.token2mel.batching import Span

_log = logging.getLogger(__name__)
Call = TypeVar("Call")
UsedCall = TypeVar("UsedCall", contravariant=True)

FAILED = "Computing the speech failed; open a new session and try again."


class SpanGroup(Protocol):
    """Spans that one call of the network computes together."""

    @property
    def steps_left(self) -> int:
        """Calls of ``step`` that are left."""

    def step(self) -> None:
        """One of the solver's steps, the first with everything that comes before them."""

    def results(self) -> list[Tensor | EngineError]:
        """Of each span, after the last step; waits for the device."""

    def abandon(self) -> None:
        """It failed, and no further method is called."""


@dataclass
class SpanBatch:
    """A call of the runner in progress: groups one after another. members: of each group, the places of its spans in ``results``."""

    results: list[Tensor | EngineError]
    groups: deque[tuple[Sequence[int], SpanGroup]] = field(default_factory=deque)

    @classmethod
    def of(cls, count: int, groups: Iterable[tuple[Sequence[int], SpanGroup]]) -> SpanBatch:
        return cls([EngineError(FAILED) for _ in range(count)], deque(groups))

    @property
    def steps_left(self) -> int:
        return sum(group.steps_left for _, group in self.groups)

    def step(self) -> None:
        """One step of the first group that is not done. An exception fails that group alone."""
        if not self.groups:
            return
        members, group = self.groups[0]
        try:
            group.step()
            if group.steps_left:
                return
            found = group.results()
        except Exception:
            _log.exception("the flow failed on %d sequences", len(members))
            group.abandon()
        else:
            for index, result in zip(members, found, strict=True):
                self.results[index] = result
        self.groups.popleft()

    def finish(self) -> list[Tensor | EngineError]:
        """All that is left, without a pause."""
        while self.groups:
            self.step()
        return self.results


class SavedTensors:
    """The state of one batch in fixed buffers, and room for a copy of it while another batch uses them."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers
        self._copies: list[Tensor] = []

    def save(self) -> None:
        """The device has finished when this returns: the host's side of the buffers may be written, too."""
        self._copies = [buffer.clone() for buffer in self._buffers]
        if self._buffers[0].device.type == "cuda":
            torch.cuda.current_stream(self._buffers[0].device).synchronize()

    def restore(self) -> None:
        for buffer, copy in zip(self._buffers, self._copies, strict=True):
            buffer.copy_(copy)
        self._copies = []


class FixedBuffers:
    """Whose state is in buffers that have one place in memory, because recorded graphs read and write them there."""

    def __init__(self) -> None:
        self._user: SavedTensors | None = None

    def enter(self, user: SavedTensors, is_new: bool) -> None:
        """``user`` is about to use them; the state of the one before is saved. is_new: there is nothing to restore."""
        if self._user is user:
            return
        if self._user is not None:
            self._user.save()
        self._user = user
        if not is_new:
            user.restore()

    def leave(self, user: SavedTensors) -> None:
        """Nobody needs what is in them, if it is that of ``user``."""
        if self._user is user:
            self._user = None


class StepsRunner(Protocol[UsedCall]):
    """Computes batches in fixed buffers. UsedCall: the buffers of one batch size."""

    @property
    def steps(self) -> int:
        """Of the solver."""

    def load(self, call: UsedCall, spans: Sequence[Span]) -> None:
        """Bring a batch to the device."""

    def launch(self, call: UsedCall, number: int) -> None:
        """Queue one of the steps."""

    def results(self, call: UsedCall, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        """Directly after the last step."""


class BufferedGroup(Generic[Call]):
    """A ``SpanGroup`` in fixed buffers. state: those whose content a batch needs between two steps."""

    def __init__(
        self, runner: StepsRunner[Call], call: Call, spans: Sequence[Span], buffers: FixedBuffers, state: Sequence[Tensor]
    ) -> None:
        self._runner = runner
        self._call = call
        self._spans = spans
        self._buffers = buffers
        self._saved = SavedTensors(state)
        self._steps_done = 0

    @property
    def steps_left(self) -> int:
        return self._runner.steps - self._steps_done

    def step(self) -> None:
        is_new = not self._steps_done
        self._buffers.enter(self._saved, is_new)
        if is_new:
            self._runner.load(self._call, self._spans)
        self._runner.launch(self._call, self._steps_done)
        self._steps_done += 1

    def results(self) -> list[Tensor | EngineError]:
        found = self._runner.results(self._call, self._spans)
        self._buffers.leave(self._saved)
        return found

    def abandon(self) -> None:
        self._buffers.leave(self._saved)
