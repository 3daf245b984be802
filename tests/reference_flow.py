"""A stream's last chunk as upstream solves it: with full attention, over everything from the start of the prompt."""

from __future__ import annotations

from typing import Any

from bistream.token2mel.batching import Span
from bistream.token2mel.planning import HopPlanner, Work
from bistream.token2mel.stage import FlowStage
from bistream.token2mel.state import FlowState, FlowStatus


class ReferenceFlowStage(FlowStage):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.planner = _Planner(self.config, self.pool, self.left_context_chunks)


class _Planner(HopPlanner):
    def plan(self, index: int, state: FlowState) -> Work | None:
        work = super().plan(index, state)
        if work is None or state.status is not FlowStatus.FINISHED:
            return work
        return Work(index, state, Span(state.tokens, 0, len(state.tokens), state.prompt, streaming=False), (), 0)
