"""Connections under uvicorn: heads of requests bounded in size and time as in the gate, and connections counted by address."""

from __future__ import annotations

import asyncio
import contextlib

from bistream.errors import BusyError
from gateway.admission import host_of
from gateway.http_server import BoundedProtocol
from interfaces.core.caller import holders_of
from interfaces.core.shares import Places
from interfaces.settings import Settings


class HttpProtocol(BoundedProtocol):
    """WebSockets leave it with their upgrade; ``Access`` counts them from there."""

    places: Places
    counts_addresses: bool
    _holders: tuple[str, ...] | None = None  # of the place that it has

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_end()

    def _on_end(self) -> None:
        """Of the connection, or of it as one of HTTP."""
        holders, self._holders = self._holders, None
        if holders is not None:
            self.places.give_back(holders)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        holders = holders_of(None, host_of(self.client[0] if self.client else "unknown")) if self.counts_addresses else ()
        with contextlib.suppress(BusyError):
            self.places.take(holders)
            self._holders = holders
        if self._holders is None:
            transport.abort()

    def handle_websocket_upgrade(self) -> None:
        self._on_end()
        super().handle_websocket_upgrade()


def http_protocol(settings: Settings) -> type[HttpProtocol]:
    """Behind a proxy all connections have its address, and it bounds those of one client."""
    limits = settings.limits
    places = Places("connections", limits.max_connections, limits.share)
    return type("CountedHttpProtocol", (HttpProtocol,), {"places": places, "counts_addresses": not settings.behind_proxy})
