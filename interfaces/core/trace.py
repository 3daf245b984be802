"""Whose work it is, from the client's request through this process to the server: one id in the logs of both. Pure.

A session of a server is called by the id of its request and a number of its own, because session ids are what servers write into their
logs; a W3C ``traceparent`` goes on as metadata as well, for the proxies between.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_ID_CHARS = 96  # of the 128 of a session id, 9 are the session's own
_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_ID_CHARS}}}")
# W3C Trace Context, level 2
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def _new_id() -> str:
    return f"req_{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Trace:
    """request_id: as the client is told it."""

    request_id: str = field(default_factory=_new_id)
    traceparent: str | None = None

    def session_id(self) -> str:
        """Of the next session that speaks for this request."""
        return f"{self.request_id}.{uuid.uuid4().hex[:8]}"

    def metadata(self) -> dict[str, str]:
        return {} if self.traceparent is None else {"traceparent": self.traceparent}


def trace_of(headers: Mapping[str, str]) -> Trace:
    """headers: with lower-case names. The id is ``x-request-id``, or the trace id of ``traceparent``, or a new one; what is not well-formed
    is left out, because it goes into logs."""
    parent = headers.get("traceparent", "").strip()
    found = _TRACEPARENT.fullmatch(parent) if len(parent) <= 128 else None
    given = headers.get("x-request-id", "")
    if _ID.fullmatch(given) is None:
        given = found.group(1) if found is not None else _new_id()
    return Trace(given, None if found is None else parent)
