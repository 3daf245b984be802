"""Connections under uvicorn: heads of requests bounded in size and time as in the gate, and connections counted by address."""

from __future__ import annotations

import asyncio
import logging

from bistream.errors import BusyError
from gateway.admission import host_of
from gateway.http_server import BoundedProtocol
from interfaces.core.caller import holders_of
from interfaces.core.quiet_log import QuietLog
from interfaces.core.shares import Places, Starts
from interfaces.settings import Settings

CONNECTIONS_PER_START = 2  # for each new utterance a second that an address may begin
MIN_PER_SECOND = 64.0  # new connections of one address


class HttpProtocol(BoundedProtocol):
    """WebSockets leave it with their upgrade; ``Access`` counts them from there. One that is too many is cut before its request is read:
    only one connection is accepted in a turn of the event loop, and the requests of one client would keep the others out."""

    places: Places
    starts: Starts
    log: QuietLog
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
        address = host_of(self.client[0] if self.client else "unknown")
        holders = holders_of(None, address) if self.counts_addresses else ()
        try:
            self.starts.take(holders)
            self.places.take(holders)
            self._holders = holders
        except BusyError:
            self.log.warn(address, "its connections are cut: it has its share of them, or opens too many in a second.")
            transport.abort()

    def handle_websocket_upgrade(self) -> None:
        self._on_end()
        super().handle_websocket_upgrade()


def http_protocol(settings: Settings) -> type[HttpProtocol]:
    """Behind a proxy all connections have its address, and it bounds those of one client."""
    limits = settings.limits
    shared = {
        "places": Places("connections", limits.max_connections, limits.share),
        "starts": Starts(limits.starts_per_second and max(MIN_PER_SECOND, CONNECTIONS_PER_START * limits.starts_per_second)),
        "log": QuietLog(logging.getLogger("interfaces")),
        "counts_addresses": not settings.behind_proxy,
    }
    return type("CountedHttpProtocol", (HttpProtocol,), shared)
