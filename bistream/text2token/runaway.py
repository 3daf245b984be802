"""Notices speech that goes on without saying anything: tokens that repeat, or hardly vary (endless silence). Pure; one per turn.

Repetition-aware sampling looks back ten tokens only, so a longer loop stays open to the model, and so does a pause without an end. Normal
speech of three seconds has dozens of different tokens, and sampled speech never repeats itself exactly for that long.

What looks like one for a fraction of that time is *suspicious*: the tokens after it are held back until it varies again or is certain, so
that most of a runaway can be drawn again before anybody has heard it. A pause in speech is held back as well, and what a listener misses
meanwhile is a pause. What is held depends on the tokens alone, not on how they are cut into pieces or when they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Runaway = Literal["loop", "stuck", "no_end"]
KINDS: tuple[Runaway, ...] = ("loop", "stuck", "no_end")  # no_end: as many tokens as the text allows, and no end; not found here
CHECKS_PER_WINDOW = 5
SUSPICIONS_PER_CHECK = 3


class RunawayWatch:
    """window: how many tokens must be empty of news; 0: never.

    held: ids that must wait. head: how many ids before them were suspicious already. found: what it is, once that is certain.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._check_every = max(1, window // CHECKS_PER_WINDOW)
        self._suspect_every = max(1, self._check_every // SUSPICIONS_PER_CHECK)
        self._last: list[int] = []
        self._count = 0
        self._is_suspicious = False
        self.head = 0
        self.held: list[int] = []
        self.found: Runaway | None = None

    def push(self, ids: Sequence[int]) -> list[int]:
        """The ids that may go now, those that were held included. After a runaway was ``found``: none."""
        if not self._window:
            return list(ids)
        free: list[int] = []
        for token_id in ids:
            if self.found is not None:
                break
            self._look(token_id)
            self.held.append(token_id)
            if not self._is_suspicious:
                free += self.held
                self.held.clear()
        return free

    def release(self) -> list[int]:
        """The held ids, which are no longer held."""
        held, self.held = self.held, []
        return held

    def _look(self, token_id: int) -> None:
        self._last.append(token_id)
        self._count += 1
        if self._count % self._suspect_every == 0 and self._count >= self._check_every:
            suspicious = suspicious_ids(self._last, self._window)
            if not self._is_suspicious:
                self.head = max(0, suspicious - 1)  # this one is held
            self._is_suspicious = suspicious > 0
        if self._count % self._check_every == 0 and self._count >= self._window:
            del self._last[: -self._window]
            self.found = classify(self._last)


def suspicious_ids(ids: Sequence[int], window: int) -> int:
    """How many of the last ids look like the beginning of a runaway: a fifth of a window, if at most half of them differ, or two thirds of
    it that repeat what came up to half a window before. What ``classify`` finds does so from there on: it is held without a break."""
    few = max(1, window // CHECKS_PER_WINDOW)
    if len(set(ids[-few:])) * 2 <= few:
        return few
    repeated = max(1, few * 2 // 3)
    end = list(ids[-repeated:])
    lags = (lag for lag in range(1, min(window // 2, len(ids) - repeated) + 1) if ids[-1 - lag] == end[-1])
    return repeated if any(ids[-repeated - lag : -lag] == end for lag in lags) else 0


def classify(ids: Sequence[int]) -> Runaway | None:
    """``stuck``: at most one different id in 12. ``loop``: a pattern of at most half of them, repeated exactly to the end."""
    if len(set(ids)) * 12 <= len(ids):
        return "stuck"
    last = ids[-1]
    periods = (period for period in range(1, len(ids) // 2 + 1) if ids[-1 - period] == last)
    return "loop" if any(ids[period:] == ids[:-period] for period in periods) else None
