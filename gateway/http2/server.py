"""The listening side: connections that were let in, and the end of them all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gateway.budget import Budget
from gateway.http2.server_call import CallError, Handler, ServerCall
from gateway.http2.server_connection import ServerConnection, ServerSettings, Shared

__all__ = ["CallError", "Http2Server", "ServerCall", "ServerSettings"]


class Http2Server:
    """handler: called for every call, as a task that is cancelled when the client goes. budget: of messages that were not read yet."""

    def __init__(self, handler: Handler, settings: ServerSettings, budget: Budget) -> None:
        self._shared = Shared(handler, settings, budget)

    def connection(self, peer: str, on_end: Callable[[], None]) -> asyncio.Protocol:
        """A protocol for a connection from ``peer``."""
        return ServerConnection(self._shared, peer, on_end)

    @property
    def connections(self) -> int:
        return len(self._shared.connections)

    @property
    def calls(self) -> int:
        return self._shared.calls

    async def stop(self, grace_s: float, farewell: str) -> None:
        """Calls that are left after ``grace_s`` end with ``UNAVAILABLE`` and ``farewell``. Nothing may be let in any more."""
        for connection in list(self._shared.connections):
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(connection.calls for connection in self._shared.connections):
                    await asyncio.sleep(0.02)
        for connection in list(self._shared.connections):
            connection.end_calls(farewell)
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self._shared.connections):
            connection.abort()
