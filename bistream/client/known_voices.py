"""Which recordings one server has heard, so that a client may send their hash. Thread-safe; kept in memory only."""

from __future__ import annotations

import threading
from collections import OrderedDict

CAPACITY = 1024
MAX_REFUSALS = 3  # in a row; a server that forgets so quickly, or several behind one address, gets the recording


class KnownVoices:
    """``hash in known``: worth trying. Bounded; the hash that was used least recently goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: OrderedDict[str, int] = OrderedDict()  # in a row
        self._known: set[str] = set()

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._known and self._refusals[digest] < MAX_REFUSALS

    def accepted(self, digest: str, was_hash: bool = False) -> None:
        """The server spoke with this voice. was_hash: it was asked for by its hash."""
        with self._lock:
            refusals = self._refusals.pop(digest, 0)
            self._refusals[digest] = 0 if was_hash else refusals
            self._known.add(digest)
            if len(self._refusals) > CAPACITY:
                self._known.discard(self._refusals.popitem(last=False)[0])

    def refused(self, digest: str) -> None:
        """The server wanted the recording."""
        with self._lock:
            self._known.discard(digest)
            if digest in self._refusals:
                self._refusals[digest] += 1
