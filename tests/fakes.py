"""Deterministic stand-ins for the heavy parts, for tests only.

``ScriptedEngine`` is an ``Engine`` without a model. A *script* decides what is sampled: it is called once per turn with a
``TurnView`` and returns candidate ids (a list or a generator), in the numbering of ``TokenSpace``. The engine honours
``TurnLimits``: a candidate that is forbidden at that point is skipped, a stop id ends the turn with STOP, ``max_new_ids``
(or the session's ``max_ids``) with LENGTH. A script that runs out of candidates is a mistake in the test and raises.

    engine = ScriptedEngine(SPACE)  # answers at once
    engine = ScriptedEngine(SPACE, counting_script, pumped=True)  # turns only move when the test calls engine.pump()

Without ``pumped`` a turn runs to its end inside ``EngineSequence.turn`` (sinks are called from there; a turn started from
a sink runs after it, not inside it). With ``pumped`` nothing happens until ``engine.pump(steps)``: one step yields one
id per running turn. ``engine.fail("sentence")`` simulates the death of the engine thread: every live turn ends with ERROR and
``healthy`` is False from then on.

``ScriptedSampler`` plugs a function into the real torch engine in place of random sampling.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bistream.errors import BusyError, EngineError, InvalidInputError, SessionExistsError, ShuttingDownError, UnknownSessionError
from bistream.text2token.engine import EngineStats, SamplingSpec, TokenSpace, TurnEnd, TurnLimits, TurnResult, TurnSink

if TYPE_CHECKING:
    from torch import Tensor

    from bistream.text2token.sampler import SamplerState


@dataclass
class TurnView:
    """What a script sees. ``sequence`` is live: all ids of the session so far, appended and yielded."""

    session_id: str
    turn_index: int
    sequence: list[int]
    append_ids: tuple[int, ...]
    limits: TurnLimits
    spec: SamplingSpec
    space: TokenSpace


Script = Callable[[TurnView], Iterable[int]]


def counting_script(view: TurnView) -> Iterator[int]:
    """Endless speech ids that depend on the sequence and the seed only: a tiny "language model" that never stops."""
    while True:
        mixed = (sum(view.sequence[-5:]) * 7 + len(view.sequence) * 3 + view.spec.seed) % view.space.speech_token_size
        yield view.space.speech_offset + mixed


@dataclass
class RecordingSink:
    """A ``TurnSink`` that records its calls. ``late`` counts calls after the end, which no engine may make."""

    ids: list[int] = field(default_factory=list)
    result: TurnResult | None = None
    late: int = 0

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self.late += self.result is not None
        self.ids.extend(ids)

    def on_end(self, result: TurnResult) -> None:
        self.late += self.result is not None
        self.result = result


class WaitableSink(RecordingSink):
    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def on_end(self, result: TurnResult) -> None:
        super().on_end(result)
        self.ended.set()


@dataclass
class _RunningTurn:
    view: TurnView
    candidates: Iterator[int]
    sink: TurnSink
    max_new_ids: int
    num_new_ids: int = 0
    cancelled: bool = False


class ScriptedSequence:
    """One session of ``ScriptedEngine``. Tests may read ``sequence``, ``decided`` and ``turns_started``."""

    def __init__(self, engine: ScriptedEngine, session_id: str, spec: SamplingSpec, max_ids: int) -> None:
        self.session_id = session_id
        self.spec = spec
        self.max_ids = max_ids
        self.sequence: list[int] = []  # every id fed or yielded; stop ids are not part of it
        self.decided: list[int] = []  # the sampler's history: yielded ids, stop ids, recorded fills
        self.turns_started: list[tuple[tuple[int, ...], TurnLimits]] = []
        self.ended = False  # a turn ended with CANCELLED or ERROR: only close is left
        self.closed = False
        self._engine = engine
        self.running: _RunningTurn | None = None

    def turn(self, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        self._engine.start_turn(self, tuple(append_ids), limits, sink)

    def cancel(self) -> None:
        if self.running is not None:
            self.running.cancelled = True

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.cancel()
        self._engine.forget(self)


class ScriptedEngine:
    def __init__(
        self,
        space: TokenSpace,
        script: Script = counting_script,
        pumped: bool = False,
        max_sessions: int = 64,
        max_total_ids: int = 1_000_000,
        max_sequence_ids: int = 100_000,
    ) -> None:
        self.space = space
        self.script = script
        self.pumped = pumped
        self.max_total_ids = max_total_ids
        self.max_sessions, self.longest_sequence = max_sessions, max_sequence_ids
        self.healthy, self.tiers = True, ()
        self.closed = False
        self.sessions: dict[str, ScriptedSequence] = {}
        self.opened: list[ScriptedSequence] = []  # every session ever, for assertions
        self._running: deque[tuple[ScriptedSequence, _RunningTurn]] = deque()
        self._pumping = False

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> ScriptedSequence:
        self._check_serving()
        if session_id in self.sessions:
            raise SessionExistsError(f"Session {session_id} is open; close it or use another id.", session_id)
        if spec.top_k < 1 or not 0 < spec.top_p <= 1 or spec.temperature < 0:
            raise InvalidInputError("A sampling value is out of range.", session_id)
        if not 1 < max_ids <= self.longest_sequence:
            raise InvalidInputError("The session may grow too long; send less text.", session_id)
        reserved = sum(session.max_ids for session in self.sessions.values())
        if len(self.sessions) >= self.max_sessions or reserved + max_ids > self.max_total_ids:
            raise BusyError("All sessions are in use; try again later.", session_id)
        session = ScriptedSequence(self, session_id, spec, max_ids)
        self.sessions[session_id] = session
        self.opened.append(session)
        return session

    def start_turn(self, session: ScriptedSequence, append_ids: tuple[int, ...], limits: TurnLimits, sink: TurnSink) -> None:
        self._check_serving()
        if session.closed or session.ended:
            raise UnknownSessionError("The session has ended; start a new one.", session.session_id)
        assert session.running is None, "one turn in flight per session"
        if not append_ids or not all(0 <= token_id < self.space.size for token_id in append_ids):
            raise InvalidInputError("A turn needs ids of the model's id space, at least one.", session.session_id)
        if limits.max_new_ids < 1 or not (limits.forbidden | limits.forbidden_early) <= set(self.space.specials):
            raise InvalidInputError("A turn must allow at least one id and may forbid stop ids only.", session.session_id)
        room = session.max_ids - len(session.sequence) - len(append_ids)
        if room < 1:
            raise InvalidInputError("The turn does not fit the session's max_ids.", session.session_id)
        view = TurnView(session.session_id, len(session.turns_started), session.sequence, append_ids, limits, session.spec, self.space)
        session.turns_started.append((append_ids, limits))
        session.sequence.extend(append_ids)
        session.running = _RunningTurn(view, iter(self.script(view)), sink, min(limits.max_new_ids, room))
        self._running.append((session, session.running))
        if not self.pumped:
            self._drain()

    def pump(self, steps: int | None = None) -> int:
        """Advance every running turn by one id per step; ``None``: until nothing runs. Returns the steps done."""
        done = 0
        for done in itertools.count():
            if not self._running or done == steps:
                break
            for _ in range(len(self._running)):
                session, running = self._running.popleft()
                if not self._advance(session, running):
                    self._running.append((session, running))
        return done

    def fail(self, sentence: str = "Computing failed; try again.") -> None:
        """A crash of the engine's thread, as callers see it."""
        self.healthy = False
        while self._running:
            session, running = self._running.popleft()
            self._end(session, running, TurnResult(TurnEnd.ERROR, error=sentence))

    def stats(self) -> EngineStats:
        used = sum(len(session.sequence) for session in self.sessions.values())
        return EngineStats(len(self.sessions), len(self._running), used, self.max_total_ids)

    def check_integrity(self) -> None:
        assert all(not session.closed for session in self.sessions.values())
        owners = [session for session, _ in self._running]
        assert len(owners) == len({id(session) for session in owners})
        assert all(session.running is running for session, running in self._running)

    def close(self) -> None:
        """Ends turns in flight with CANCELLED. Idempotent."""
        self.closed = True
        while self._running:
            session, running = self._running.popleft()
            self._end(session, running, TurnResult(TurnEnd.CANCELLED))

    def forget(self, session: ScriptedSequence) -> None:
        del self.sessions[session.session_id]
        if not self.pumped:
            self._drain()

    def _check_serving(self) -> None:
        if self.closed:
            raise ShuttingDownError("The server is shutting down; use another one.")
        if not self.healthy:
            raise EngineError("The language model has failed; try again later.")

    def _drain(self) -> None:
        if self._pumping:
            return  # called from a sink: the loop below, further up the stack, goes on
        self._pumping = True
        try:
            while self._running:
                session, running = self._running.popleft()
                while not self._advance(session, running):
                    pass
        finally:
            self._pumping = False

    def _advance(self, session: ScriptedSequence, running: _RunningTurn) -> bool:
        """One step of one turn. Returns whether the turn has ended."""
        if running.cancelled:
            return self._end(session, running, TurnResult(TurnEnd.CANCELLED))
        chosen = self._next_allowed(running)
        session.decided.append(chosen)
        if chosen in self.space.specials:
            return self._end(session, running, TurnResult(TurnEnd.STOP, stop_id=chosen))
        session.sequence.append(chosen)
        running.num_new_ids += 1
        try:
            running.sink.on_ids((chosen,))
        except AssertionError:  # of a test
            raise
        except Exception as error:
            return self._end(session, running, TurnResult(TurnEnd.ERROR, error=str(error)))
        if running.num_new_ids < running.max_new_ids:
            return False
        if running.view.limits.record_on_length is not None:
            session.decided.append(running.view.limits.record_on_length)
        return self._end(session, running, TurnResult(TurnEnd.LENGTH))

    def _next_allowed(self, running: _RunningTurn) -> int:
        limits = running.view.limits
        for candidate in running.candidates:
            early = running.num_new_ids < limits.min_new_ids and candidate in limits.forbidden_early
            if candidate not in limits.forbidden and not early:
                assert self.space.is_speech(candidate) or candidate in self.space.specials, candidate
                return candidate
        raise AssertionError(f"the script ran out of candidates in turn {running.view.turn_index} of session {running.view.session_id!r}")

    def _end(self, session: ScriptedSequence, running: _RunningTurn, result: TurnResult) -> bool:
        session.running = None
        session.ended = result.end in (TurnEnd.CANCELLED, TurnEnd.ERROR)
        running.sink.on_end(result)
        return True


Pick = Callable[["Tensor", list[int]], int]


def decided(state: SamplerState, slot: int) -> list[int]:
    """The last ``history_size`` head rows decided by the session in ``slot``, oldest first."""
    count = int(state.num_decided[slot])
    ring = state.history[slot].tolist()
    return [ring[index % state.history_size] for index in range(max(0, count - state.history_size), count)]


class ScriptedSampler:
    """A ``bistream.text2token.sampler.Sampler`` that asks a function per row.

    picks: by session id, ``pick(log_probs, decided) -> head row``. log_probs float32 [speech_token_size + 3], forbidden ids at
    minus infinity; ``decided``: all head rows that the session decided so far, sampled stop ids and recorded fills included.
    max_decided: an upper bound of ``len(decided)`` (one per position of the longest session is plenty).
    """

    compiles = False

    def __init__(self, picks: Mapping[str, Pick], max_decided: int = 4096) -> None:
        self.history_size = max_decided
        self._picks = picks

    def choose(self, log_probs: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        assert int(state.num_decided.max()) <= self.history_size, "max_decided is too small for this script"
        rows = zip(log_probs, slots.tolist(), strict=True)
        return slots.new_tensor([self._picks[state.session_ids[slot]](row, decided(state, slot)) for row, slot in rows])
