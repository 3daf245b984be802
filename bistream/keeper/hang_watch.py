"""Which processes hang. Pure: signs of life and the time go in, verdicts come out.

A process hangs when nothing about it has changed for ``limit_s``: no new heartbeat, no change between stopped and running. Only time in
which the keeper itself looked counts, at most a second for each look: if the whole machine stood still (suspended, migrated, short of
memory) or somebody stopped the keeper, nobody else is blamed. A process that said how long it is busy is given that time first, unless
it is stopped (SIGSTOP, a debugger): then it is not busy.

The limit is above ten seconds, so that whatever is stopped for ten seconds goes on afterwards, and below twelve with all that follows
(the next look, the notice, the front door's look), so that no caller waits longer for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

HANG_TIMEOUT_S = 10.75
MAX_STEP_S = 1.0


@dataclass(frozen=True)
class Sign:
    """What is seen of one process at one look. beat: grows while it works; ``None``: it gives no such sign, only its stop counts."""

    beat: int | None
    is_stopped: bool = False
    busy_s: float = 0.0


@dataclass
class _Silence:
    sign: Sign
    busy_left_s: float
    seconds: float = 0.0


class HangWatch:
    """Follows any number of processes by a name of the caller's choice."""

    def __init__(self, limit_s: float = HANG_TIMEOUT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._looked_at = clock()
        self._silences: dict[Hashable, _Silence] = {}

    def look(self, signs: Mapping[Hashable, Sign]) -> dict[Hashable, float]:
        """Seconds of silence of each process that hangs. One that is missing from ``signs`` is forgotten."""
        now = self._clock()
        step_s, self._looked_at = min(now - self._looked_at, MAX_STEP_S), now
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
