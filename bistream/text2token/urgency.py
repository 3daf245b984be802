"""Which sequences a step of the language model is for. Pure.

A caller says with each request for tokens for how long its listener has audio (``Demand``); every token that is sampled afterwards adds to
that. Sequences whose caller says nothing are near.

- waiting: a listener hears nothing, and the tokens that the caller asked for are not complete; or it will soon hear nothing.
- near: it has less than ``AMPLE_S``.
- ahead: it has more. Its tokens are wanted some time.
- held: it had more than the bound on unread audio, beyond which its audio is not made anyway, and has used up less than ``BURST_S`` of it
  since. So tokens come in bursts: one at a time, at the pace of speech, each would be a message.

While somebody waits, most steps are short: waiting sequences, new prompts and as many near ones as keep the step short. One step in
``FULL_STEPS`` takes everybody but those held, so nobody is left behind by more than that.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

NEARLY_SILENT_S = 0.5  # a hop waits for its tokens, its batch and the ways between processes
AMPLE_S = 2.0
BURST_S = 4.0  # or half of the bound
SHORT_ROWS = 64  # a step of 64 rows takes 0.73 ms on an H200, one row 0.37, 256 rows 1.58 (docs/log/gpu.md)
FULL_STEPS = 4
LONGEST_WAIT_S = 60.0  # between two looks at held sequences; a condition does not take every number of seconds that a caller may send


class Urgency(enum.IntEnum):
    WAITING = 0
    NEAR = 1
    AHEAD = 2
    HELD = 3


_WAITING, _NEAR, _AHEAD, _HELD = Urgency  # looked up for every row of a step


@dataclass(slots=True)
class Demand:
    """What a caller said. silent_at_s: when its listener will have heard all tokens so far. lacks: further ones that it waits for.

    is_held: at the last look its listener had too much.
    """

    silent_at_s: float
    lacks: int = 0
    is_held: bool = False

    @classmethod
    def of(cls, slack_s: float, wanted_tokens: int, now_s: float) -> Demand:
        """slack_s: audio that the listener has, and that of all tokens made so far. wanted_tokens: further ones that are useful now."""
        return cls(now_s + slack_s, wanted_tokens if slack_s < NEARLY_SILENT_S else 0)

    def sampled(self, token_s: float, count: int = 1) -> None:
        """So many tokens more, each of which lasts ``token_s``."""
        self.silent_at_s += count * token_s
        self.lacks -= count


def urgency_of(demand: Demand | None, now_s: float, max_ahead_s: float) -> Urgency:
    """max_ahead_s: from which on a sequence is held."""
    if demand is None:
        return _NEAR
    slack_s = demand.silent_at_s - now_s
    if demand.lacks > 0 or slack_s < NEARLY_SILENT_S:
        return _WAITING
    if slack_s < AMPLE_S:
        return _NEAR
    return _AHEAD if slack_s <= (resume_s(max_ahead_s) if demand.is_held else max_ahead_s) else _HELD


def resume_s(max_ahead_s: float) -> float:
    """Audio of its listener with which a held sequence goes on."""
    return max_ahead_s - min(BURST_S, 0.5 * max_ahead_s)


class StepShares:
    """Divides the steps. max_ahead_s: as in ``urgency_of``."""

    def __init__(self, max_ahead_s: float) -> None:
        self._max_ahead_s = max_ahead_s
        self._short_steps = 0  # since the last one for everybody

    def is_held(self, demand: Demand | None, now_s: float) -> bool:
        if demand is None:
            return False
        demand.is_held = urgency_of(demand, now_s, self._max_ahead_s) is _HELD
        return demand.is_held

    def wake_after_s(self, demands: Sequence[Demand | None], now_s: float) -> float | None:
        """Seconds until the first of these sequences, all of them held, may go on, or until the next look; None: nothing is held."""
        moments = [demand.silent_at_s - resume_s(self._max_ahead_s) for demand in demands if demand is not None]
        return min(max(0.0, min(moments) - now_s), LONGEST_WAIT_S) if moments else None

    def is_idle(self, demands: Sequence[Demand | None], now_s: float) -> bool:
        """Whether all listeners of these sequences have audio for a while."""
        return all(demand is not None and urgency_of(demand, now_s, self._max_ahead_s) is not _WAITING for demand in demands)

    def somebody_waits(self, demands: Sequence[Demand], now_s: float) -> bool:
        return any(urgency_of(demand, now_s, self._max_ahead_s) is _WAITING for demand in demands)

    def choose(self, sequences: Sequence[tuple[T, Demand | None]], has_new: bool, now_s: float) -> tuple[list[T], bool]:
        """Those for which the next step is, the most urgent ones first; and whether others were left out for their sake.

        sequences: that have a row to compute, those first that have waited longest. has_new: text or prompts are to be fed.
        """
        by_urgency: list[list[T]] = [[] for _ in Urgency]
        for sequence, demand in sequences:
            urgency = urgency_of(demand, now_s, self._max_ahead_s)
            by_urgency[urgency].append(sequence)
            if demand is not None:
                demand.is_held = urgency is _HELD
        waiting, near, ahead, _ = by_urgency
        kept = near[: max(0, SHORT_ROWS - len(waiting))]
        somebody_waits = bool(waiting or has_new)
        is_short = somebody_waits and self._short_steps < FULL_STEPS - 1 and len(kept) < len(near) + len(ahead)
        self._short_steps = self._short_steps + 1 if is_short else 0
        return [*waiting, *kept] if is_short else [*waiting, *near, *ahead], is_short
