"""The engine: turns of ids from any thread in, requests of TensorRT-LLM and their ids to the turns' sinks. Implements ``engine.Engine``.

A thread of its own runs an event loop; there every turn is a task (``turn_task.py``) and every sink is called. TensorRT-LLM hands its
answers to the loop in which a request was made, so all its methods are called there, except ``shutdown``. One lock guards the sessions and
the table of turns; it is held neither while TensorRT-LLM is called nor while a sink is.

TensorRT-LLM can fall silent without an error when its own threads die. A turn that hears nothing for ``stall_s`` ends with ERROR; when no
turn hears anything the engine has failed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import EngineError, ShuttingDownError
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import (
    FAILED_SENTENCE,
    EngineStats,
    SamplingSpec,
    TokenSpace,
    TurnEnd,
    TurnLimits,
    TurnResult,
    TurnSink,
)
from bistream.text2token.step_metrics import watch_stats
from bistream.text2token.tensorrt_llm.library import RequestMaker, load_llmapi, make_llm
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds, read_merged_ids
from bistream.text2token.tensorrt_llm.preflight import check_installed
from bistream.text2token.tensorrt_llm.sequences import Sequences, SequenceState, Sizes, sizes_of
from bistream.text2token.tensorrt_llm.turn_metrics import TurnMetrics
from bistream.text2token.tensorrt_llm.turn_rules import TurnRules
from bistream.text2token.tensorrt_llm.turn_task import RunningTurn, TurnFailed, decode

logger = logging.getLogger(__name__)
STALL_S = 20.0  # a step takes milliseconds, and a prompt less than a second
STALL_INTERVAL_S = 1.0
STALLED_SENTENCE = "The language model did not answer for this session; start it again."
IGNORED = "TensorRT-LLM samples by top-k, top-p and temperature alone: it ignores seeds and repetitions (docs/tensorrt_llm.md)"


class TensorRtLlmSequence:
    """An ``EngineSequence``. Made by ``TensorRtLlmEngine.open``."""

    def __init__(self, engine: TensorRtLlmEngine, state: SequenceState) -> None:
        self._engine = engine
        self._state = state

    def turn(self, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        self._engine.begin_turn(self._state, append_ids, limits, sink)

    def cancel(self) -> None:
        self._engine.cancel_turn(self._state)

    def close(self) -> None:
        self._engine.close_sequence(self._state)


class TensorRtLlmEngine:
    def __init__(
        self,
        llmapi: Any,
        llm: Any,
        merged: MergedIds,
        sizes: Sizes,
        retention_s: float,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
    ) -> None:
        """llm: an ``LLM`` of ``llmapi``, which the engine shuts down at its end. retention_s: see ``RequestMaker``."""
        self.space: TokenSpace = merged.space
        self.merged = merged
        self._request_error: type[Exception] = llmapi.RequestError  # one request failed, the engine goes on
        self.llm = llm
        self.maker = RequestMaker(llmapi, merged, retention_s, sizes.temperature)
        recorder = recorder or Recorder()
        self.metrics = TurnMetrics(recorder, clock)
        watch_stats(recorder, self.stats, sizes.tokens_per_block)
        self.clock = clock
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._sequences = Sequences(sizes, merged)
        self._turns: dict[SequenceState, RunningTurn] = {}
        self.tiers, self.longest_sequence = (), sizes.longest_sequence
        self.healthy = True
        self._closing = False
        self._stopped = False  # the loop takes no further calls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="text2token-trtllm", daemon=True)
        self._thread.start()
        logger.warning(IGNORED)

    @classmethod
    def from_config(cls, config: RuntimeConfig, recorder: Recorder | None = None) -> TensorRtLlmEngine:
        """Load ``config.engine_dir`` and start. Raises ``CheckpointError`` or ``ConfigError`` naming the problem."""
        check_installed()
        model = read_config(config.model_dir).language_model
        merged = read_merged_ids(config.engine_dir, TokenSpace.of(model))
        sizes = sizes_of(config, model)
        llmapi = load_llmapi(config.device, merged)
        llm = make_llm(llmapi, config.engine_dir, config.dtype, sizes)
        return cls(llmapi, llm, merged, sizes, config.session_idle_timeout_s, recorder)

    # -- any thread --------------------------------------------------------------------------------------------------

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> TensorRtLlmSequence:
        with self._lock:
            self._check_serving()
            state = self._sequences.open(session_id, spec, max_ids)
            self.metrics.opened(state)
            return TensorRtLlmSequence(self, state)

    def begin_turn(self, state: SequenceState, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        with self._lock:
            self._check_serving()
            is_first = not state.ids
            max_new_ids = self._sequences.begin_turn(state, append_ids, limits)
            turn = RunningTurn(state, sink, TurnRules(self.space, limits, max_new_ids), self.clock())
            self._turns[state] = turn
            if is_first:
                self.metrics.first_turn_begun(state)
            self._loop.call_soon_threadsafe(self._start, turn)

    def cancel_turn(self, state: SequenceState) -> None:
        with self._lock:
            self._cancel_soon(state)

    def close_sequence(self, state: SequenceState) -> None:
        with self._lock:
            if self._sequences.close(state):
                self.metrics.closed(state)
                self._cancel_soon(state)

    def stats(self) -> EngineStats:
        with self._lock:
            return self._sequences.stats(sum(not turn.has_response for turn in self._turns.values()))

    def check_integrity(self) -> None:
        with self._lock:
            self._sequences.check_integrity()
            assert all(not turn.has_ended for turn in self._turns.values())
            in_turn = {state for state in self._sequences.live.values() if state.in_turn}
            assert in_turn == {state for state in self._turns if state in self._sequences.live.values()}

    def close(self) -> None:
        """End turns in flight with CANCELLED and shut TensorRT-LLM down. Idempotent; does not wait when called from a sink."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._loop.call_soon_threadsafe(self._close)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _check_serving(self) -> None:
        if self._closing:
            raise ShuttingDownError("The server is shutting down; use another one.")
        if not self.healthy:
            raise EngineError(FAILED_SENTENCE)

    def _cancel_soon(self, state: SequenceState) -> None:
        turn = self._turns.get(state)
        if turn is not None and not self._stopped:
            turn.is_cancelled = True  # the task looks at it before it delivers anything more
            self._loop.call_soon_threadsafe(self._stop_turn, turn, TurnResult(TurnEnd.CANCELLED))

    # -- the loop's thread -------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._watch)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            with self._lock:
                self._stopped = True
            self._loop.close()
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self.llm.shutdown()
        except Exception:
            logger.exception("TensorRT-LLM could not be shut down")

    def _close(self) -> None:
        for turn in self._running():
            self._stop_turn(turn, TurnResult(TurnEnd.CANCELLED))
        self._loop.stop()

    def _start(self, turn: RunningTurn) -> None:
        if not turn.has_ended:
            turn.task = self._loop.create_task(self._run(turn))

    async def _run(self, turn: RunningTurn) -> None:
        try:
            result = await decode(self, turn)
        except (TurnFailed, ValueError, self._request_error) as error:
            logger.error("a request of session %s failed: %s", turn.state.session_id, error)
            result = TurnResult(TurnEnd.ERROR, error="The language model refused or ended a request of this session; start it again.")
        except Exception:
            logger.exception("TensorRT-LLM failed")
            self._fail()
            return
        self._end(turn, result)

    def deliver(self, turn: RunningTurn, ids: Sequence[int]) -> None:
        """Add decoded ids to the sequence and pass them to the sink. Raises ``TurnFailed`` if the sink raises."""
        with self._lock:
            self._sequences.add_decoded(turn.state, ids)
            self.metrics.decoded(turn.state, len(ids))
        try:
            turn.sink.on_ids(ids)
        except Exception as error:
            logger.exception("a sink raised")
            turn.abort()
            raise TurnFailed("its sink raised") from error

    def count_response(self, turn: RunningTurn, num_prompt: int, num_cached: int) -> None:
        """The first response of a request: what its prompt cost."""
        with self._lock:
            self.metrics.recomputed.inc(self._sequences.count_recomputed(turn.state, num_prompt, num_cached))

    def request_ended(self, turn: RunningTurn, by_stop_id: bool) -> None:
        with self._lock:
            self._sequences.request_ended(turn.state, by_stop_id)

    def _end(self, turn: RunningTurn, result: TurnResult) -> None:
        """Exactly one end for each turn."""
        with self._lock:
            if turn.has_ended:
                return
            turn.has_ended = True
            del self._turns[turn.state]
            self._sequences.end_turn(turn.state, result.end in (TurnEnd.CANCELLED, TurnEnd.ERROR))
            self.metrics.rejected.inc(turn.rules.num_rejected)
        try:
            turn.sink.on_end(result)
        except Exception:
            logger.exception("a sink raised")

    def _stop_turn(self, turn: RunningTurn, result: TurnResult) -> None:
        """End a turn from outside its task, and its request with it."""
        if turn.has_ended:
            return
        turn.abort()
        if turn.task is not None:
            turn.task.cancel()
        self._end(turn, result)

    def _fail(self) -> None:
        """All turns end with ERROR, and the engine takes no more."""
        with self._lock:
            self.healthy = False
        for turn in self._running():
            if turn.task is not None and turn.task is not asyncio.current_task(self._loop):
                turn.task.cancel()
            self._end(turn, TurnResult(TurnEnd.ERROR, error=FAILED_SENTENCE))

    def _running(self) -> list[RunningTurn]:
        with self._lock:
            return list(self._turns.values())

    def _watch(self) -> None:
        self._look_for_stalls()
        self._loop.call_later(STALL_INTERVAL_S, self._watch)

    def _look_for_stalls(self) -> None:
        running, now = self._running(), self.clock()
        stalled = [turn for turn in running if now - turn.responded_at >= self._stall_s]
        if stalled and len(stalled) == len(running):
            logger.error("TensorRT-LLM has not answered for %.0f s", self._stall_s)
            self._fail()
            return
        for turn in stalled:
            logger.error("TensorRT-LLM has not answered session %s for %.0f s", turn.state.session_id, self._stall_s)
            self._stop_turn(turn, TurnResult(TurnEnd.ERROR, error=STALLED_SENTENCE))
