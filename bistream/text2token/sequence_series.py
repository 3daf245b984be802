"""The engine's sequences of one session, one after the other, and the watch over the turn in flight. Called under the session's lock.

A turn that runs away is drawn again, in a new sequence with another seed, from before the runaway began: nothing of it was handed out but
its suspicious head (``runaway.py``). Beyond ``MAX_REDRAWS``, or without room for a sequence, it ends as if its length were used up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bistream.contract.checks import MAX_SEED
from bistream.errors import BistreamError
from bistream.text2token.engine import Engine, SamplingSpec, TakesDemands, TurnEnd, TurnLimits, TurnResult, TurnSink
from bistream.text2token.layout import Turn
from bistream.text2token.runaway import Runaway, RunawayWatch

MAX_REDRAWS = 2  # of one turn
Outcome = Literal["redrawn", "ended"]
OUTCOMES: tuple[Outcome, ...] = ("redrawn", "ended")
RunawaySettings = tuple[int, Callable[[Runaway, Outcome], None]]  # speech tokens without news that are a runaway, 0: never; told of each


@dataclass
class _Flight:
    """The turn in flight. watch: None where more text bounds it."""

    limits: TurnLimits
    watch: RunawayWatch | None
    redraws: int = 0


class SequenceSeries:
    def __init__(
        self,
        engine: Engine,
        session_id: str,
        spec: SamplingSpec,
        max_ids: int,
        runaways: RunawaySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the first sequence, of ``max_ids`` positions. Raises as ``Engine.open``."""
        self._engine = engine
        self._session_id = session_id
        self._spec = spec
        self._max_ids = max_ids
        self._clock = clock
        self._runaway_window, self._on_runaway = runaways
        self._sequence = engine.open(session_id, spec, max_ids)
        self._flight: _Flight | None = None
        self._demand: tuple[float, float, int] | None = None  # the last one, and when it came

    def begin(self, turn: Turn, sink: TurnSink) -> None:
        """Raises as ``EngineSequence.turn``, and as ``Engine.open`` where the turn needs a new sequence."""
        watch = RunawayWatch(self._runaway_window) if turn.limits.record_on_length is None else None
        self._flight = _Flight(turn.limits, watch)
        if turn.restarts:
            self._begin_anew()
        self._sequence.turn(turn.append_ids, turn.limits, sink)

    def yielded(self, ids: Sequence[int]) -> Sequence[int]:
        """Ids of the turn in flight, as the engine yields them; returns those to hand out now. A runaway is cancelled."""
        watch = None if self._flight is None else self._flight.watch
        if watch is None or watch.found is not None:
            return ids if watch is None else ()
        free = watch.push(ids)
        if watch.found is not None:
            self._sequence.cancel()
        return free

    def held(self) -> Sequence[int]:
        """At the end of the turn in flight: what is left to hand out. Of a runaway nothing is."""
        watch = None if self._flight is None else self._flight.watch
        return () if watch is None or watch.found is not None else watch.release()

    def ended(self, result: TurnResult, before: Sequence[int], handed_out: Sequence[int], sink: TurnSink) -> TurnResult | None:
        """The end of the turn as the layout is to see it; None: the turn goes on, drawn again.

        before: the ids of the sequence, without those that the turn yielded. handed_out: of the turn.
        """
        flight = self._flight
        assert flight is not None
        found = None if flight.watch is None else flight.watch.found
        if found is not None and result.end is not TurnEnd.ERROR:
            if self._redraw(flight, before, handed_out, sink):
                self._on_runaway(found, "redrawn")
                return None
            self._on_runaway(found, "ended")
            result = TurnResult(TurnEnd.LENGTH)
        elif flight.watch is not None and result.end is TurnEnd.LENGTH:
            self._on_runaway("no_end", "ended")
        self._flight = None
        return result

    def demand(self, slack_s: float, wanted_tokens: int) -> None:
        """See ``engine.TakesDemands``."""
        self._demand = self._clock(), slack_s, wanted_tokens
        self._pass_demand()

    def kept(self, count: int) -> None:
        """See ``engine.TakesDemands``."""
        if count and isinstance(self._sequence, TakesDemands):
            self._sequence.kept(count)

    def _pass_demand(self) -> None:
        if self._demand is not None and isinstance(self._sequence, TakesDemands):
            came_at, slack_s, wanted_tokens = self._demand
            self._sequence.demand(slack_s - (self._clock() - came_at), wanted_tokens)

    def close(self) -> None:
        """Idempotent."""
        self._sequence.close()

    def _begin_anew(self) -> None:
        """Raises as ``Engine.open``."""
        self._sequence.close()
        self._spec = replace(self._spec, seed=(self._spec.seed + 1) % (MAX_SEED + 1))  # equal draws could make equal mistakes
        self._sequence = self._engine.open(self._session_id, self._spec, self._max_ids)
        self._pass_demand()  # its listener still waits, for no more than this

    def _redraw(self, flight: _Flight, before: Sequence[int], handed_out: Sequence[int], sink: TurnSink) -> bool:
        """Whether the turn goes on. Its head was heard, but the model is not told of it, so that it does not go on from there."""
        watch, limits, count = flight.watch, flight.limits, len(handed_out)
        assert watch is not None
        if not watch.held or flight.redraws == MAX_REDRAWS or count >= limits.max_new_ids:
            return False
        kept = handed_out[: max(0, count - watch.head)]
        least = max(0, limits.min_new_ids - count)
        rest = replace(limits, max_new_ids=limits.max_new_ids - count, min_new_ids=least)
        flight.watch, flight.redraws = RunawayWatch(self._runaway_window), flight.redraws + 1
        try:
            self._begin_anew()
            self._sequence.turn((*before, *kept), rest, sink)
        except BistreamError:  # no room for another sequence
            return False
        return True
