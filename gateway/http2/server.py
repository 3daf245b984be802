"""The listening side: connections that are let in, calls that are handed to the doors, and the status with which each one ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from gateway.http2.connection import Connection
from gateway.http2.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    PREFACE,
    ErrorCode,
    Flag,
    Setting,
    Violation,
    encoded_message,
    header_block,
    reset,
)
from gateway.http2.stream import BadMessage, InputBudget, Stream, StreamLost

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 600.0  # of a connection without calls
CONNECTION_WINDOW = 1024 * 1024
_RESPONSE = header_block([(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")])
_OK = header_block([(b"grpc-status", b"0")])
_NOT_GRPC = header_block([(b":status", b"415")])


class CallError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.status = status
        self.details = details


class ServerCall:
    """One call of a client. path: ``/service/method``; headers: the client's, lower-case; peer: host of the client."""

    def __init__(self, stream: Stream, peer: str, send_headers: Callable[[int, bytes, int], None]) -> None:
        self.path = stream.headers[":path"]
        self.headers = stream.headers
        self.peer = peer
        self._stream = stream
        self._send_headers = send_headers
        self._has_answered = False
        self._is_sending = False

    async def read(self) -> bytes | None:
        """The next message; ``None`` once the client has half-closed. Raises ``CallError`` for a message that cannot be taken."""
        try:
            return await self._stream.read()
        except BadMessage as error:
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None

    def try_write(self, message: bytes) -> bool:
        """Send a message now, if there is room for all of it. Only while no ``write`` is under way."""
        return self._has_answered and self._stream.try_write(message)

    async def write(self, message: bytes) -> None:
        """Raises ``StreamLost`` when the client has gone."""
        if not self._has_answered:
            self._has_answered = True
            self._send_headers(self._stream.id, _RESPONSE, 0)
        self._is_sending = True
        await self._stream.write(message)
        self._is_sending = False

    def finish(self, status: grpc.StatusCode, details: str = "") -> None:
        """The status; a stream that stands in the midst of a message is reset instead."""
        stream = self._stream
        if self._is_sending:
            stream.abort(ErrorCode.CANCEL)
            return
        if status == grpc.StatusCode.OK:
            block = _OK
        else:
            block = header_block([(b"grpc-status", str(status.value[0]).encode()), (b"grpc-message", encoded_message(details))])
        stream.end(block if self._has_answered else _RESPONSE + block)
        if stream.remote_ended:
            stream.lose()
        else:
            stream.abort(ErrorCode.NO_ERROR)  # what the client still sends is not wanted


Handler = Callable[[ServerCall], Awaitable[None]]


@dataclass
class ServerSettings:
    """max_streams: calls at a time of one connection. max_input_bytes: unfinished messages of all connections together."""

    max_connections: int
    connections_per_address: int  # 0: no limit
    max_streams: int
    max_message_bytes: int
    max_input_bytes: int


@dataclass
class _Shared:
    handler: Handler
    settings: ServerSettings
    budget: InputBudget
    connections: set[ServerConnection] = field(default_factory=set)

    def has_too_many(self, peer: str) -> bool:
        """Whether the connections are more than may be, in all or of this peer's."""
        settings = self.settings
        if len(self.connections) > settings.max_connections:
            return True
        limit = settings.connections_per_address
        return 0 < limit < sum(connection.peer == peer for connection in self.connections)


class ServerConnection(Connection):
    def __init__(self, shared: _Shared) -> None:
        super().__init__(DEFAULT_WINDOW, CONNECTION_WINDOW, DEFAULT_MAX_FRAME, is_trusted=False)
        self._shared = shared
        self.peer = ""
        self._has_preface = False
        self._is_leaving = False
        self._calls: dict[Stream, tuple[ServerCall, asyncio.Task[None]]] = {}
        self._used_at = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def calls(self) -> int:
        return len(self._calls)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        shared = self._shared
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
        shared.connections.add(self)
        if shared.has_too_many(self.peer):
            self.abort()
            return
        self._deadline = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._check_handshake)
        self.start({Setting.MAX_CONCURRENT_STREAMS: shared.settings.max_streams})

    def _check_handshake(self) -> None:
        if not self.has_settings:
            self.abort()

    def skip_preface(self, data: bytes) -> bytes | None:
        if self._has_preface:
            return data
        if data[: len(PREFACE)] != PREFACE[: len(data)]:
            self.abort()  # not HTTP/2: there is no way to say so
            return b""
        if len(data) < len(PREFACE):
            return None
        self._has_preface = True
        return data[len(PREFACE) :]

    def on_block(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:  # trailers of the client
            if not ended:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "headers in the midst of a stream")
            stream.take_end()
            return
        if stream_id <= self.last_stream_id:
            return  # for a call that has ended
        if stream_id % 2 == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream of the server's")
        self.last_stream_id = stream_id
        self.charge()
        if self._is_leaving or len(self._calls) >= self._shared.settings.max_streams:
            self.send(reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if fields.get(":method") != "POST" or ":path" not in fields or not fields.get("content-type", "").startswith("application/grpc"):
            self.send_headers(stream_id, _NOT_GRPC, Flag.END_STREAM)
            self.send(reset(stream_id, ErrorCode.NO_ERROR))
            return
        self._open(stream_id, fields, ended)

    def _open(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        stream = Stream(self, stream_id, self._shared.settings.max_message_bytes, self._shared.budget)
        stream.headers = fields
        self.streams[stream_id] = stream
        if ended:
            stream.take_end()
        call = ServerCall(stream, self.peer, self.send_headers)
        task = self._loop.create_task(_run(self._shared.handler, call))
        self._calls[stream] = (call, task)
        task.add_done_callback(lambda _: self._on_done(stream))

    def _on_done(self, stream: Stream) -> None:
        del self._calls[stream]
        self._used_at = self._loop.time()
        if self._is_leaving and not self._calls:
            self.close()

    def forget(self, stream: Stream) -> None:
        """A stream that is gone takes its handler with it, unless that is what has ended it."""
        super().forget(stream)
        _, task = self._calls.get(stream, (None, None))
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()

    def on_check(self, now: float) -> None:
        if not self._calls and now - self._used_at > IDLE_TIMEOUT_S:
            self.close()

    def leave(self) -> None:
        """Take no new calls; close once those that run have ended."""
        self._is_leaving = True
        if self._calls:
            self.send_goaway()
        else:
            self.close()

    def end_calls(self, details: str) -> None:
        """Every call that is left ends with ``UNAVAILABLE``."""
        for call, _ in list(self._calls.values()):
            call.finish(grpc.StatusCode.UNAVAILABLE, details)

    def on_lost(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._shared.connections.discard(self)


async def _run(handler: Handler, call: ServerCall) -> None:
    """A call from its first byte to its status."""
    try:
        await handler(call)
    except CallError as error:
        call.finish(error.status, error.details)
    except StreamLost:
        pass
    except Exception:
        logger.exception("a call failed")
        call.finish(grpc.StatusCode.INTERNAL, "ENGINE_ERROR: The gate failed; try again.")
    else:
        call.finish(grpc.StatusCode.OK)


class Http2Server:
    """``start`` once, ``stop`` once. handler: called for every call, as a task that is cancelled when the client goes."""

    def __init__(self, handler: Handler, settings: ServerSettings) -> None:
        self._shared = _Shared(handler, settings, InputBudget(settings.max_input_bytes))
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
        self._server = await loop.create_server(lambda: ServerConnection(self._shared), sock=listener, **options)

    @property
    def connections(self) -> int:
        return len(self._shared.connections)

    async def stop(self, grace_s: float, farewell: str) -> None:
        """Calls that are left after ``grace_s`` end with ``UNAVAILABLE`` and ``farewell``."""
        if self._server is None:
            return
        self._server.close()
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
        self._server = None
