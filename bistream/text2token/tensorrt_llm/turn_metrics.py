"""What the engine records. TensorRT-LLM's own steps cannot be seen, so there are no rows and seconds of steps. Pure: an injected clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bistream.metrics import families
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import EngineStats
from bistream.text2token.step_metrics import watch_stats
from bistream.text2token.tensorrt_llm.sequences import SequenceState


@dataclass
class _Marks:
    """Times of a session on its way to the first token. turn_begun_at: of its first turn."""

    opened_at: float
    turn_begun_at: float = 0.0


class TurnMetrics:
    """Called under the engine's lock."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._recorder = recorder
        self._clock = clock
        self._tokens = recorder.counter(families.SPEECH_TOKENS)
        self._recomputed = recorder.counter(families.RECOMPUTED_TOKENS)
        self._rejected = recorder.counter(families.REJECTED_STOPS)
        self._text = recorder.histogram(families.AUDIO_STAGE, "text")
        self._first_token = recorder.histogram(families.AUDIO_STAGE, "first_token")
        self._marks: dict[SequenceState, _Marks] = {}

    def watch(self, stats: Callable[[], EngineStats], block_size: int) -> None:
        """Read ``stats`` with every snapshot."""
        watch_stats(self._recorder, stats, block_size)

    def opened(self, state: SequenceState) -> None:
        self._marks[state] = _Marks(self._clock())

    def turn_begun(self, state: SequenceState) -> None:
        marks = self._marks.get(state)
        if marks is not None and not marks.turn_begun_at:
            marks.turn_begun_at = self._clock()
            self._text.observe(marks.turn_begun_at - marks.opened_at)

    def decoded(self, state: SequenceState, num_ids: int) -> None:
        self._tokens.inc(num_ids)
        marks = self._marks.pop(state, None)
        if marks is not None:  # waiting for TensorRT-LLM and its first step cannot be told apart
            self._first_token.observe(self._clock() - marks.turn_begun_at)

    def prompt_computed(self, num_recomputed: int) -> None:
        self._recomputed.inc(num_recomputed)

    def turn_ended(self, num_rejected: int) -> None:
        self._rejected.inc(num_rejected)

    def closed(self, state: SequenceState) -> None:
        self._marks.pop(state, None)
