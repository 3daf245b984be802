"""Decisions of the fleet simulation: which replica a proxy gives a session, and how many a replica takes. Pure.

The names of the balancing policies are Envoy's: ``least_request`` with ``FULL_SCAN`` and, as ``two_choices``, with its default of two
replicas drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class ProxyView:
    """What one proxy knows: the replicas that it takes for ready, and its own open sessions at each; not those of other proxies."""

    ready: list[int]
    open: list[int]  # by replica
    chance: random.Random
    turn: int = 0
    avoid: int | None = field(default=None)  # of this choice only: the replica that could not be reached


def least_request(view: ProxyView, candidates: Sequence[int]) -> int:
    """Ties are broken at random, as in Envoy's scan."""
    fewest = min(view.open[replica] for replica in candidates)
    return view.chance.choice([replica for replica in candidates if view.open[replica] == fewest])


def two_choices(view: ProxyView, candidates: Sequence[int]) -> int:
    """The better of two drawn independently, which may be the same one."""
    first, second = view.chance.choice(candidates), view.chance.choice(candidates)
    return first if view.open[first] <= view.open[second] else second


def round_robin(view: ProxyView, candidates: Sequence[int]) -> int:
    view.turn += 1
    return candidates[view.turn % len(candidates)]


def at_random(view: ProxyView, candidates: Sequence[int]) -> int:
    return view.chance.choice(candidates)


POLICIES: dict[str, Callable[[ProxyView, Sequence[int]], int]] = {
    "least_request": least_request,
    "two_choices": two_choices,
    "round_robin": round_robin,
    "random": at_random,
}


def choose(policy: str, view: ProxyView) -> int | None:
    """A replica that the proxy takes for ready; None where there is none. ``avoid`` is used only if it is the only one."""
    candidates: Sequence[int] = view.ready
    if view.avoid is not None and len(candidates) > 1:
        candidates = [replica for replica in candidates if replica != view.avoid]
    return POLICIES[policy](view, candidates) if candidates else None


@dataclass(frozen=True)
class AdmissionRule:
    """What a replica refuses. The default is what containers and chart set.

    max_sessions: 0: any number. load_target: ``admission_load``, decided by ``bistream/sessions/load.py``; 0: off. capacity: audio
    seconds per second that it takes for possible; 0: as the replica measures it.
    """

    max_sessions: int = 0
    load_target: float = 0.9
    capacity: float = 0.0

    def has_place(self, open_sessions: int) -> bool:
        return open_sessions < self.max_sessions or not self.max_sessions

    @property
    def name(self) -> str:
        possible = f" of {self.capacity:g}" if self.capacity else ""
        parts = [f"{self.max_sessions} sessions"] if self.max_sessions else []
        parts += [f"load {self.load_target:g}{possible}"] if self.load_target else []
        return ", ".join(parts) or "none"
