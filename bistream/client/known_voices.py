"""Which recordings one server has heard, so that a client may send their hash. Thread-safe; kept in memory only."""

from __future__ import annotations

import threading
from collections import OrderedDict

from bistream.errors import InvalidInputError, UnknownVoiceError

CAPACITY = 1024
MAX_REFUSALS = 3  # in a row; a server that forgets so quickly, or several behind one address, gets the recording


def is_refusal_of_hash(error: BaseException) -> bool:
    """Whether the recording itself is wanted: the voice is not known, or the server is older than the input ``reference_hash``."""
    return isinstance(error, UnknownVoiceError) or _is_older_server(error)


def _is_older_server(error: BaseException) -> bool:
    return isinstance(error, InvalidInputError) and "reference_hash" in error.sentence


class KnownVoices:
    """``hash in known``: worth trying. Bounded; the hash that was used least recently goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: OrderedDict[str, int] = OrderedDict()  # in a row
        self._known: set[str] = set()
        self._server_is_older = False

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return not self._server_is_older and digest in self._known and self._refusals[digest] < MAX_REFUSALS

    def accepted(self, digest: str, was_hash: bool = False) -> None:
        """The server spoke with this voice. was_hash: it was asked for by its hash."""
        with self._lock:
            refusals = self._refusals.pop(digest, 0)
            self._refusals[digest] = 0 if was_hash else refusals
            self._known.add(digest)
            if len(self._refusals) > CAPACITY:
                self._known.discard(self._refusals.popitem(last=False)[0])

    def refused(self, digest: str, error: BaseException) -> None:
        """The server wanted the recording."""
        with self._lock:
            self._server_is_older |= _is_older_server(error)
            self._known.discard(digest)
            if digest in self._refusals:
                self._refusals[digest] += 1
