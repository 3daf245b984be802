"""WebSockets whose API key comes with their first message (ElevenLabs), as browsers cannot set headers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from bistream.errors import BistreamError
from interfaces.core.caller import Caller
from interfaces.core.errors import UnauthenticatedError
from interfaces.protocols.actions import POLICY_VIOLATION
from interfaces.protocols.elevenlabs import key_headers, refusal
from interfaces.web.access import Access
from interfaces.web.conversation import Socket

KEY_TIMEOUT_S = 10.0


class _Begun:
    """A socket whose first message was read, and is read again."""

    def __init__(self, socket: Socket, first: str | bytes) -> None:
        self._socket = socket
        self._first: str | bytes | None = first

    async def receive(self) -> str | bytes | None:
        first, self._first = self._first, None
        return await self._socket.receive() if first is None else first

    async def send(self, message: str | bytes) -> None:
        await self._socket.send(message)

    async def close(self, code: int, reason: str) -> None:
        await self._socket.close(code, reason)


async def turn_away(socket: Socket, error: BistreamError) -> None:
    """In the form of the protocol, whose socket was accepted before it was known whose it is."""
    await socket.send(json.dumps(refusal(error)))
    await socket.close(POLICY_VIOLATION, error.code.lower())


async def identified(socket: Socket, access: Access, stranger: Caller, timeout_s: float = KEY_TIMEOUT_S) -> tuple[Socket, Caller] | None:
    """The socket to go on with, and who the stranger is; None: it was refused, or is gone."""
    try:
        first = await asyncio.wait_for(socket.receive(), timeout_s)
    except TimeoutError:
        first = ""
    if first is None:
        return None
    try:
        caller = replace(access.identify(key_headers(first), stranger.address).caller, trace=stranger.trace)
    except UnauthenticatedError as error:
        await turn_away(socket, error)
        return None
    return _Begun(socket, first), caller
