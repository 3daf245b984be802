"""The session that a start continues, by the ids that sessions have towards Triton.

Only its caller may name a session: a client with the same API key, or, where none are wanted, with the same ``session_secret`` or on the
stream on which it was started. A name that this caller has not used, or not within a minute, is replaced by an id that nobody has: the
session starts as if it named none, and no client learns whether another's session exists.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import replace

from bistream.contract.earlier_sessions import EarlierSessions
from gateway.admission import Caller
from gateway.requests import FrontModelRequest, bytes_tensor

FIELD = "continues"


def new_id() -> str:
    return secrets.token_hex(16)


class EarlierIds:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._own_ids = EarlierSessions[str](clock)

    def add(self, owner: Hashable, client_id: str | None, own_id: str) -> None:
        """A session has ended without an error. owner: of ``owner_of``."""
        if client_id is not None:
            self._own_ids.add((owner, client_id), own_id)

    def translated(self, owner: Hashable, request: FrontModelRequest) -> FrontModelRequest:
        """With the own id of the session that it names, if it names one."""
        if FIELD not in request.tensors:
            return request
        found = self._own_ids.find((owner, request.data(FIELD).decode("ascii")))
        return replace(request, tensors={**request.tensors, FIELD: bytes_tensor(FIELD, (found or new_id()).encode("ascii"))})


def owner_of(owner: Hashable, caller: Caller, start: FrontModelRequest) -> Hashable:
    """Who may continue the session that ``start`` starts. owner: of the session."""
    return owner if caller.key is not None or start.secret is None else ("secret", start.secret)
