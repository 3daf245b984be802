"""What the engine records: rows and seconds of its steps, sampled tokens, and the stages of a session up to its first token.

Called by ``torch_engine.py`` under the engine's lock. Steps return in the order in which they were started. Pure: an injected clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bistream.metrics import catalogue
from bistream.metrics.catalogue import Labels
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import EngineStats
from bistream.text2token.sequence import Segment, SequenceRecord, StepPlan


@dataclass
class SequenceMarks:
    """Times of a sequence on its way to the first token; it is dropped with that token, or when the sequence is closed."""

    opened_at: float  # by ``open``
    turn_begun_at: float = 0.0  # by the first turn: the text suffices for it
    scheduled_at: float = 0.0  # by the first step with one of its rows


@dataclass(frozen=True)
class _Started:
    """A step in flight. firsts: sequences whose first token it samples."""

    at: float
    firsts: tuple[SequenceRecord, ...]


class StepMetrics:
    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._clock = clock
        self._rows = recorder.histogram(catalogue.LM_STEP_ROWS)
        self._seconds = recorder.histogram(catalogue.LM_STEP)
        self._steps = recorder.counter(catalogue.LM_STEPS, "full"), recorder.counter(catalogue.LM_STEPS, "short")
        self._tokens = recorder.counter(catalogue.SPEECH_TOKENS)
        self._text = recorder.histogram(catalogue.AUDIO_STAGE, "text")
        self._queue = recorder.histogram(catalogue.AUDIO_STAGE, "lm_queue")
        self._first_token = recorder.histogram(catalogue.AUDIO_STAGE, "first_token")
        self._marks: dict[SequenceRecord, SequenceMarks] = {}
        self._waiting: dict[int, SequenceRecord] = {}  # by slot: first turn begun, no row scheduled
        self._in_flight: deque[_Started] = deque()
        self._last_done_at = 0.0

    def watch(self, stats: Callable[[], EngineStats], block_size: int) -> None:
        """Read ``stats`` with every snapshot."""
        watch_stats(self._recorder, stats, block_size)

    def opened(self, sequence: SequenceRecord) -> None:
        self._marks[sequence] = SequenceMarks(self._clock())

    def turn_begun(self, sequence: SequenceRecord) -> None:
        marks = self._marks.get(sequence)
        if marks is not None and not marks.turn_begun_at:
            marks.turn_begun_at = self._clock()
            self._text.observe(marks.turn_begun_at - marks.opened_at)
            self._waiting[sequence.slot] = sequence

    def closed(self, sequence: SequenceRecord) -> None:
        self._marks.pop(sequence, None)
        if self._waiting.get(sequence.slot) is sequence:
            del self._waiting[sequence.slot]

    def step_started(self, plan: StepPlan) -> None:
        now, fed = self._clock(), _fed_segments(plan)
        self._steps[plan.is_short].inc()
        self._rows.observe(len(plan.segments) - len(fed) + sum(segment.num_rows for segment in fed))
        self._in_flight.append(_Started(now, self._note_first_rows(plan, fed, now) if self._marks else ()))

    def step_done(self, num_sampled: int) -> None:
        """The result of the oldest step in flight was applied: ``num_sampled`` ids reached their turns."""
        now, step = self._clock(), self._in_flight.popleft()
        self._seconds.observe(now - max(step.at, self._last_done_at))
        self._last_done_at = now
        self._tokens.inc(num_sampled)
        for sequence in step.firsts:
            marks = self._marks.pop(sequence, None)
            if marks is not None:
                self._first_token.observe(now - marks.scheduled_at)

    def failed(self) -> None:
        """No step in flight will return."""
        self._in_flight.clear()

    def _note_first_rows(self, plan: StepPlan, fed: Sequence[Segment], now: float) -> tuple[SequenceRecord, ...]:
        """The sequences whose first token this step samples."""
        for segment in fed:
            sequence = self._waiting.pop(segment.slot, None)
            if sequence is not None:
                marks = self._marks[sequence]
                marks.scheduled_at = now
                self._queue.observe(now - marks.turn_begun_at)
        sampling = sum(segment.samples for segment in fed)
        return tuple(sequence for sequence, _ in plan.sampling[len(plan.sampling) - sampling :] if sequence in self._marks)


def watch_stats(recorder: Recorder, stats: Callable[[], EngineStats], block_size: int) -> None:
    """Read an engine's ``stats`` with every snapshot."""

    def sequences() -> dict[Labels, float]:
        now = stats()
        return {("running",): now.running_turns, ("parked",): now.sessions - now.running_turns}

    def blocks() -> dict[Labels, float]:
        now = stats()
        free = now.kv_tokens_total - now.kv_tokens_used
        return {("used",): now.kv_tokens_used // block_size, ("free",): free // block_size}

    recorder.read(catalogue.LM_SEQUENCES, sequences)
    recorder.read(catalogue.LM_QUEUE, lambda: {(): stats().waiting_turns})
    recorder.read(catalogue.KV_BLOCKS, blocks)


def _fed_segments(plan: StepPlan) -> list[Segment]:
    """Those with ids; they are the last ones of a plan, and there are few: the hundreds of decoding ones are not looked at."""
    fed = []
    for segment in reversed(plan.segments):
        if segment.ids is None:
            break
        fed.append(segment)
    return fed
