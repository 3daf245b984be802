"""How full a server is, from the metrics page of its keeper (docs/operations.md). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNKNOWN_CAPACITY = 750.0  # audio seconds per second, as servers assume before they have measured theirs
_SAMPLE = re.compile(r"^bistream_(load|capacity_audio_s_per_s|sessions|server_ready)(?:\{[^}\n]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServerLoad:
    """load: what is promised to live sessions by what can be made, 0 where the server does not know. capacity: audio seconds per second.
    own_sessions: of this process on the server, when the page was read."""

    sessions: float = 0.0
    load: float = 0.0
    capacity: float = UNKNOWN_CAPACITY
    is_ready: bool = True
    own_sessions: int = 0

    def expected(self, own_sessions: int) -> float:
        """The load now: of the page, and of our sessions that have begun or ended since."""
        return max(0.0, max(self.load, self.sessions / self.capacity) + (own_sessions - self.own_sessions) / self.capacity)


def parse_load(page: str, own_sessions: int) -> ServerLoad | None:
    """None: it is no page of a server. Sums over labels; what is no number counts nothing."""
    found: dict[str, float] = {}
    for name, text in _SAMPLE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value < float("inf"):
            found[name] = found.get(name, 0.0) + value
    if not found:
        return None
    capacity = found.get("capacity_audio_s_per_s") or UNKNOWN_CAPACITY
    return ServerLoad(found.get("sessions", 0.0), found.get("load", 0.0), capacity, found.get("server_ready", 1.0) > 0, own_sessions)
