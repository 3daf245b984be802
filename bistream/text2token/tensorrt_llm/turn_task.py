"""One turn as a task of the engine's loop: asks TensorRT-LLM, request by request, until ``TurnRules`` says that the turn has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bistream.text2token.engine import TokenSpace, TurnEnd, TurnResult, TurnSink
from bistream.text2token.tensorrt_llm.library import RequestMaker
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.sequences import SequenceState
from bistream.text2token.tensorrt_llm.turn_rules import TurnRules

logger = logging.getLogger(__name__)


class TurnFailed(Exception):
    """TensorRT-LLM answered this turn with something that it must not; the others go on."""


@dataclass(eq=False)
class RunningTurn:
    """output: the ``RequestOutput`` of the request in flight. responded_at: its last sign of life, or when the turn began."""

    state: SequenceState
    sink: TurnSink
    rules: TurnRules
    responded_at: float
    has_response: bool = False
    is_cancelled: bool = False
    has_ended: bool = False
    output: Any = None
    task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Tell TensorRT-LLM to stop the request in flight."""
        output, self.output = self.output, None
        if output is None:
            return
        try:
            output.abort()
        except Exception:
            logger.exception("a request could not be aborted; it goes on until its end, unheard")


class Host(Protocol):
    """What a turn needs of the engine."""

    llm: Any
    maker: RequestMaker
    merged: MergedIds
    space: TokenSpace

    def clock(self) -> float: ...

    def deliver(self, turn: RunningTurn, ids: Sequence[int]) -> None: ...

    def count_response(self, turn: RunningTurn, num_prompt: int, num_cached: int) -> None: ...

    def request_ended(self, turn: RunningTurn, by_stop_id: bool) -> None: ...


async def decode(host: Host, turn: RunningTurn) -> TurnResult:
    """Run the turn to its end. Raises ``TurnFailed``, and what TensorRT-LLM raises."""
    while not turn.is_cancelled:
        num_before = turn.rules.num_new
        prompt = list(turn.state.ids)
        turn.responded_at = host.clock()
        turn.output = host.llm.generate_async(**host.maker.arguments(prompt, turn.rules.next_request(), turn.state.spec))
        is_over, stop_id = await _receive(host, turn, len(prompt))
        if not is_over:
            break
        turn.output = None
        host.request_ended(turn, stop_id is not None)
        if stop_id is None and turn.rules.num_new == num_before:
            raise TurnFailed("it ended without a token and without a stop id")
        result = turn.rules.ended(stop_id)
        if result is not None:
            return result
    turn.abort()
    return TurnResult(TurnEnd.CANCELLED)


async def _receive(host: Host, turn: RunningTurn, num_prompt: int) -> tuple[bool, int | None]:
    """Pass on what a request decodes. Returns whether it came to its end (else the turn was cancelled), and the stop id there."""
    completion: Any = None
    async for response in turn.output:
        if turn.is_cancelled:
            return False, None
        turn.responded_at = host.clock()
        if completion is None:
            turn.has_response = True
            host.count_response(turn, num_prompt, response.cached_tokens)
        completion = response.outputs[0]
        accepted, stop_id = turn.rules.accept([_own_id(host, merged_id) for merged_id in completion.token_ids_diff])
        if accepted:
            host.deliver(turn, accepted)
        if stop_id is not None:  # only a request's last response has one
            return True, stop_id
    return True, _stop_of(host, completion)


def _own_id(host: Host, merged_id: int) -> int:
    token_id = host.merged.from_merged(merged_id)
    if token_id is None:
        raise TurnFailed(f"it sampled id {merged_id}, which no row of the speech head has: the head's bias is lost")
    return token_id


def _stop_of(host: Host, completion: Any) -> int | None:
    """The stop id of a request that ended without one among its ids: TensorRT-LLM removes those that it was given as stop ids."""
    reason = None if completion is None else completion.finish_reason
    if reason == "length":
        return None
    if reason != "stop":
        raise TurnFailed(f"it ended with {reason or 'no reason'}")
    stop_reason = completion.stop_reason  # None: the end id
    return _own_id(host, stop_reason) if isinstance(stop_reason, int) else host.space.eos
