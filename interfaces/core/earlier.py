"""The utterance that another one continues: by the id of its request, or by its text. An id counts for its caller only."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from bistream.contract.earlier_sessions import EarlierSessions
from interfaces.core.caller import Caller
from interfaces.core.servers import Server

COMPARED_CHARS = 16  # at the end of a text, of those that are read aloud


@dataclass(frozen=True)
class EarlierSession:
    """The last one of an utterance. Another server knows nothing of it."""

    server: Server
    session_id: str


class EarlierUtterances:
    """Those that ended within a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = EarlierSessions[EarlierSession](clock)

    def add(self, caller: Caller, text_end: str, session: EarlierSession) -> None:
        for name in (caller.trace.request_id, name_of_text(text_end)):
            self._sessions.add((caller.holders[0], name), session)

    def find(self, caller: Caller, name: str) -> EarlierSession | None:
        """name: the id of a request, or ``name_of_text``."""
        return self._sessions.find((caller.holders[0], name))


def name_of_text(text: str) -> str:
    """Of an utterance whose text ends as this one does, in the form of an id."""
    end = "".join(filter(str.isalnum, text.lower()))[-COMPARED_CHARS:]
    return f"text.{hashlib.sha256(end.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
