"""Remembers how the last sessions ended, so that a request that comes too late is told why. Bounded; one for each table of sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from bistream.contract.refusals import came_late, unknown_session
from bistream.errors import BistreamError

MAX_ENDED = 4096  # an id has at most 128 characters, a secret as many: one to two megabytes


class EndedSessions:
    """By whatever the table knows sessions by. Not thread-safe: used under the lock of the table."""

    def __init__(self, capacity: int = MAX_ENDED) -> None:
        self._capacity = capacity
        self._ends: OrderedDict[Hashable, BistreamError | None] = OrderedDict()

    def add(self, key: Hashable, end: BistreamError | None) -> None:
        """end: the error that the session ended with, ``None`` where it finished. The oldest entry goes when there are too many."""
        self._ends.pop(key, None)
        # An unraised copy: the traceback of a raised error would keep the frames of its session alive.
        self._ends[key] = None if end is None else end.renewed(end.session_id)
        if len(self._ends) > self._capacity:
            self._ends.popitem(last=False)

    def discard(self, key: Hashable) -> None:
        """This session is live again."""
        self._ends.pop(key, None)

    def error_of(self, key: Hashable, session_id: str) -> BistreamError:
        """For a request to a session that is not live."""
        if key not in self._ends:
            return unknown_session(session_id)
        return came_late(self._ends[key], session_id)
