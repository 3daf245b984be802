"""Connections under uvicorn: heads of requests bounded in size and time as in the gate, and connections counted by address."""

from __future__ import annotations

import asyncio
from collections import Counter

from gateway.http_server import BoundedProtocol
from interfaces.web.access import network_of


class HttpProtocol(BoundedProtocol):
    """WebSockets leave it with their upgrade; ``Access`` counts them from there."""

    connections_per_address = 0
    open_by_address: Counter[str]
    _address: str | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_end()

    def _on_end(self) -> None:
        """Of the connection, or of it as one of HTTP."""
        address, self._address = self._address, None
        if address is not None:
            self.open_by_address[address] -= 1
            if not self.open_by_address[address]:
                del self.open_by_address[address]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = network_of(self.client[0] if self.client else "unknown")
        self.open_by_address[self._address] += 1
        if 0 < self.connections_per_address < self.open_by_address[self._address]:
            transport.abort()

    def handle_websocket_upgrade(self) -> None:
        self._on_end()
        super().handle_websocket_upgrade()


def http_protocol(limit: int) -> type[HttpProtocol]:
    """limit: connections of one address; 0: any number."""
    return type("CountedHttpProtocol", (HttpProtocol,), {"connections_per_address": limit, "open_by_address": Counter()})
