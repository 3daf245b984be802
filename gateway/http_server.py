"""uvicorn inside the gate's event loop: its signals left alone, and the heads of requests bounded in size and time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.listening import listening_socket, server_context
from gateway.settings import TlsSettings

HEADER_TIMEOUT_S = 10.0  # for the head of a request
KEEP_ALIVE_S = 5
MAX_HEAD_BYTES = 32 * 1024  # of a request: its line and its fields
HEADER_OVERHEAD_BYTES = 64  # what a field takes beside its contents
MAX_CONNECTIONS = 1024  # beyond it, requests are answered 503
MAX_PIPELINED = 8  # requests that wait for the answer of one before them
_OFFER = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*\r\n", re.IGNORECASE)


class EmbeddedServer(uvicorn.Server):
    """Leaves the signals to the program around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TooMuch(Exception):
    """Raised inside the parser, which then answers with status 400 and closes."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is too long or does not come to its end in time, and one with many requests at once.

    A body that was answered before its end is still read, in the time of a head: a client that is writing it would see its connection
    reset, and not the answer. So a connection that ends with its request does so behind the body.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_in_body = _is_last = False  # the latter: the connection ends with this request
    _head_bytes = 0
    _fields_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        if not self._is_in_body:
            self._head_bytes += len(data)
            data = _without_offer(data)
        super().data_received(data)
        if self._deadline is not None and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()  # one field without end: the parser has not said a word of it

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url), len(self.url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + HEADER_OVERHEAD_BYTES, 0)

    def _count(self, size: int, whole: int) -> None:
        self._fields_bytes += size
        if max(self._fields_bytes, whole) > MAX_HEAD_BYTES:
            raise _TooMuch

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields_bytes = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _TooMuch

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._is_in_body = True
        super().on_headers_complete()
        self._is_last = self.cycle is not None and not self.cycle.keep_alive
        if self._is_last:
            self.cycle.keep_alive = True

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()
        if self._is_last:
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _without_offer(data: bytes) -> bytes:
    """Without the offer of HTTP/2 that Java's clients make in every head: the parser would leave the body after it unread."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OFFER.sub(b"\r\n", head + end[:2]) + end[2:] + rest


class HttpServer:
    """``start`` once, ``stop`` once. app: an ASGI application."""

    def __init__(self, app: Any) -> None:
        self.port = 0
        self._app = app
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, address: str, port: int, tls: TlsSettings | None) -> None:
        """Raises ``ConfigError`` when the port cannot be had, or the certificate not be used."""
        context = None if tls is None else server_context(tls, ["http/1.1"])
        listener = listening_socket(address, port, "HTTP")
        config = uvicorn.Config(
            self._app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            limit_concurrency=MAX_CONNECTIONS,
        )
        config.load()
        config.ssl = context
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not a line for each request that is no HTTP
        self._server = EmbeddedServer(config)
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self, grace_s: float) -> None:
        if self._server is None or self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.force_exit = grace_s <= 0
        self._server.should_exit = True
        await self._task
