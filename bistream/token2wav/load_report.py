"""What token2wav tells the front models beside every waveform: it knows pace and memory, they admit sessions and cut speech into hops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadReport:
    """capacity: audio seconds per second with full batches; 0: not known yet.

    pages: of flow state in total, a second of speech each; 0: not bounded. reserve_pages: those a session has whatever happens, beside its
    voice's. most_pages: the most that one session uses, beside its voice's; 0: as many as its speech has seconds.
    chunks_join: samples do not depend on how many complete chunks a hop has, but for rounding.
    """

    capacity: float = 0.0
    pages: int = 0
    reserve_pages: int = 0
    most_pages: int = 0
    chunks_join: bool = False
