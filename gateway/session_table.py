"""All live sessions, by owner and by the client's id, and what became of those that ended last."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bistream.contract.ended_sessions import EndedSessions
from bistream.contract.refusals import session_exists
from bistream.errors import InvalidInputError
from gateway.session import Session


class SessionTable:
    """An id counts within its owner only: strangers' sessions do not exist."""

    def __init__(self) -> None:
        self._live: dict[tuple[Hashable, str], Session] = {}
        self._all: set[Session] = set()
        self._ended = EndedSessions()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._all))

    def refuse_existing(self, owner: Hashable, client_id: str | None) -> None:
        if client_id is not None and (owner, client_id) in self._live:
            raise session_exists(client_id)

    def add(self, session: Session) -> None:
        self._all.add(session)
        if session.client_id is not None:
            self._live[session.owner, session.client_id] = session
            self._ended.discard((session.owner, session.client_id))

    def remove(self, session: Session) -> None:
        self._all.discard(session)
        if session.client_id is not None and self._live.get((session.owner, session.client_id)) is session:
            del self._live[session.owner, session.client_id]
            self._ended.add((session.owner, session.client_id), session.error)

    def find(self, owner: Hashable, client_id: str | None) -> Session:
        """The live session of this owner. Raises ``InvalidInputError``, and how the session has ended (``came_late``)."""
        if client_id is None:
            raise InvalidInputError("session_id is missing; send the id of the session that was started.")
        session = self._live.get((owner, client_id))
        if session is not None:
            return session
        raise self._ended.error_of((owner, client_id), client_id)
