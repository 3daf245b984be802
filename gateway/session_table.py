"""All live sessions, by owner and by the client's id, and what became of those that ended last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from bistream.errors import BistreamError, InvalidInputError, SessionExistsError, UnknownSessionError
from gateway.session import Session

MAX_ENDED = 4096


class SessionTable:
    """An id counts within its owner only: strangers' sessions do not exist."""

    def __init__(self) -> None:
        self._live: dict[tuple[Hashable, str], Session] = {}
        self._all: set[Session] = set()
        self._ended: OrderedDict[tuple[Hashable, str], BistreamError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._all))

    def refuse_existing(self, owner: Hashable, client_id: str | None) -> None:
        if client_id is not None and (owner, client_id) in self._live:
            raise SessionExistsError("A live session has this id; choose another, or append with is_start false.", client_id)

    def add(self, session: Session) -> None:
        self._all.add(session)
        if session.client_id is not None:
            self._live[session.owner, session.client_id] = session
            self._ended.pop((session.owner, session.client_id), None)

    def remove(self, session: Session) -> None:
        self._all.discard(session)
        key = (session.owner, session.client_id)
        if session.client_id is not None and self._live.get((session.owner, session.client_id)) is session:
            del self._live[session.owner, session.client_id]
            self._ended[key[0], session.client_id] = session.end_error()
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def find(self, owner: Hashable, client_id: str | None) -> Session:
        """The live session of this owner. Raises ``InvalidInputError``, ``UnknownSessionError``, ``CancelledError``."""
        if client_id is None:
            raise InvalidInputError("session_id is missing; send the id of the session that was started.")
        session = self._live.get((owner, client_id))
        if session is not None:
            return session
        ended = self._ended.get((owner, client_id))
        if ended is not None:
            raise ended.renewed(client_id)
        raise UnknownSessionError("No live session has this id; it was never started, has finished or was cancelled.", client_id)
