"""Which processes hang, and which are only busy. Pure: signs of life and the time go in, verdicts come out.

A process hangs when nothing about it has changed for ``limit_s``: no new heartbeat, no change between stopped and running. Only time in
which the keeper itself looked counts, at most a second for each look: if the whole machine stood still (suspended, migrated, short of
memory) or somebody stopped the keeper, nobody else is blamed. A process that said how long it is busy is given that time first, unless
it is stopped (SIGSTOP, a debugger): then it is not busy.

The limit is above ``LONGEST_STOP_S``, so that whatever is stopped for that long goes on afterwards, and below three seconds more with all
that follows (the next look, the notice, the front model's look), so that no caller waits longer for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from bistream.processes.control_files import LONGEST_STOP_S

HANG_TIMEOUT_S = LONGEST_STOP_S + 0.75
MAX_STEP_S = 1.0
DEAD_AFTER_S = LONGEST_STOP_S + 2.0  # without a heartbeat and without work
STUCK_AFTER_S = 60.0  # without a heartbeat, whatever it computes
WORK_S = 0.3  # so much processor time is a sign of life; a dead process whose threads wake up now and then uses less in ``DEAD_AFTER_S``


@dataclass(frozen=True)
class Sign:
    """What is seen of one process at one look. beat: changes while it works; ``None``: it gives no such sign, only its stop counts."""

    beat: Hashable
    is_stopped: bool = False
    busy_s: float = 0.0


@dataclass
class _Silence:
    sign: Sign
    busy_left_s: float
    seconds: float = 0.0


class HangWatch:
    """Follows any number of processes by a name of the caller's choice."""

    def __init__(
        self, limit_s: float = HANG_TIMEOUT_S, clock: Callable[[], float] = time.monotonic, max_step_s: float = MAX_STEP_S
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._max_step_s = max_step_s
        self._looked_at = clock()
        self._silences: dict[Hashable, _Silence] = {}

    def look(self, signs: Mapping[Hashable, Sign]) -> dict[Hashable, float]:
        """Seconds of silence of each process that hangs. One that is missing from ``signs`` is forgotten."""
        now = self._clock()
        step_s, self._looked_at = min(now - self._looked_at, self._max_step_s), now
        self._silences = {name: self._heard(name, sign, step_s) for name, sign in signs.items()}
        return {name: seconds for name, seconds in self.silences().items() if seconds >= self._limit_s}

    def _heard(self, name: Hashable, sign: Sign, step_s: float) -> _Silence:
        silence = self._silences.get(name)
        if silence is None or (silence.sign.beat, silence.sign.is_stopped) != (sign.beat, sign.is_stopped):
            return _Silence(sign, sign.busy_s)
        if silence.busy_left_s > 0.0 and not sign.is_stopped:
            silence.busy_left_s -= step_s
        elif sign.is_stopped or sign.beat is not None:
            silence.seconds += step_s
        return silence

    def silences(self) -> dict[Hashable, float]:
        """Seconds of silence of every process at the last look."""
        return {name: silence.seconds for name, silence in self._silences.items()}


class BusyWatch:
    """Tells a process with an event loop that is busy, or kept from working, from one that is dead or will never end what it does."""

    def __init__(self, max_step_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """max_step_s: the longest time between two looks."""
        self._watch = HangWatch(clock=clock, max_step_s=max_step_s)
        self._held_looks = 0
        self.silent_s = 0.0  # since the last heartbeat

    def look(self, beat: Hashable, processor_s: float, is_held: bool) -> str | None:
        """Why the process must be replaced, as the end of a sentence, or ``None``. beat: changes with the process and while its loop turns.
        processor_s: used by all its threads since its start. is_held: it is stopped, or waits for a processor."""
        self._held_looks += is_held
        work = (beat, int(processor_s / WORK_S), self._held_looks)
        self._watch.look({"loop": Sign(beat), "process": Sign(work)})
        silences = self._watch.silences()
        self.silent_s = silences["loop"]
        if silences["process"] >= DEAD_AFTER_S:
            return f"has given no sign of life for {self.silent_s:.0f} s and does nothing"
        if self.silent_s >= STUCK_AFTER_S:
            return f"has given no sign of life for {self.silent_s:.0f} s"
        return None
