"""uvicorn inside the gate's event loop: its signals left alone, and connections bounded in number and in patience."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.listening import listening_socket, server_context
from gateway.settings import Limits, TlsSettings

HEADER_TIMEOUT_S = 10.0  # for the head of a request
KEEP_ALIVE_S = 5


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _protocol(limits: Limits) -> type[HttpToolsProtocol]:
    class BoundedProtocol(HttpToolsProtocol):
        """Closes a connection over the limit, and one whose request does not come to the end of its head in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            hosts = [client[0] for one in self.connections if (client := getattr(one, "client", None))]
            is_too_many = 0 < limits.connections_per_address < hosts.count(host)
            if is_too_many or len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
                self._await_head()
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return BoundedProtocol


class HttpServer:
    """``start`` once, ``stop`` once. app: an ASGI application."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, address: str, port: int, tls: TlsSettings | None) -> None:
        """Raises ``ConfigError`` when the port cannot be had, or the certificate not be used."""
        context = None if tls is None else server_context(tls, ["http/1.1"])
        listener = listening_socket(address, port, "HTTP")
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=_protocol(self._limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=16384,
        )
        config.load()
        config.ssl = context
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not a line for each request that is no HTTP
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self, grace_s: float) -> None:
        if self._server is None or self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.force_exit = grace_s <= 0
        self._server.should_exit = True
        await self._task
