"""What the engine records. TensorRT-LLM's own steps cannot be seen, so there are no rows and seconds of steps. Pure: an injected clock."""

from __future__ import annotations

from collections.abc import Callable

from bistream.metrics import catalogue
from bistream.metrics.recorder import Recorder
from bistream.text2token.tensorrt_llm.sequences import SequenceState


class TurnMetrics:
    """Called under the engine's lock."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = recorder.counter(catalogue.SPEECH_TOKENS)
        self.recomputed = recorder.counter(catalogue.RECOMPUTED_TOKENS)
        self.rejected = recorder.counter(catalogue.REJECTED_STOPS)
        self._text = recorder.histogram(catalogue.AUDIO_STAGE, "text")
        self._first_token = recorder.histogram(catalogue.AUDIO_STAGE, "first_token")
        self._since: dict[SequenceState, float] = {}  # of sessions without a token: when they were opened, or their first turn began

    def opened(self, state: SequenceState) -> None:
        self._since[state] = self._clock()

    def first_turn_begun(self, state: SequenceState) -> None:
        begun_at = self._clock()
        self._text.observe(begun_at - self._since[state])
        self._since[state] = begun_at

    def decoded(self, state: SequenceState, num_ids: int) -> None:
        self._tokens.inc(num_ids)
        begun_at = self._since.pop(state, None)
        if begun_at is not None:  # waiting for TensorRT-LLM and its first step cannot be told apart
            self._first_token.observe(self._clock() - begun_at)

    def closed(self, state: SequenceState) -> None:
        self._since.pop(state, None)
