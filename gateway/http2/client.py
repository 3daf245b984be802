"""The calling side: one connection to a server that is trusted, and calls on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.budget import Budget
from gateway.http2.connection import Connection
from gateway.http2.fields import RawFields
from gateway.http2.frames import LARGEST_WINDOW, PREFACE, ErrorCode, Setting, Violation, decoded_message, header_block
from gateway.http2.stream import BadMessage, Stream, StreamLost

CONNECT_TIMEOUT_S = 2.0
STREAM_WINDOW = 4 * 1024 * 1024  # of audio on its way; all of it is read as it comes
CONNECTION_WINDOW = 256 * 1024 * 1024
MAX_FRAME = 128 * 1024  # one chunk of audio
MAX_MESSAGE_BYTES = 512 * 1024 * 1024  # an hour and a half of audio
_STATUS = {str(status.value[0]): status for status in grpc.StatusCode}


class CallFailed(Exception):
    """The server ended a call with this status, or could not be reached (``UNAVAILABLE``)."""

    def __init__(self, status: grpc.StatusCode, details: str = "") -> None:
        super().__init__(details)
        self.status = status
        self.details = details


class ClientConnection(Connection):
    def __init__(self, authority: str, on_lost: Callable[[ClientConnection], None], scheme: bytes = b"http") -> None:
        super().__init__(STREAM_WINDOW, CONNECTION_WINDOW, MAX_FRAME, is_trusted=True)
        self._authority = authority
        self._scheme = scheme
        self._tell_lost = on_lost
        self._next_id = 1
        self._budget = Budget()
        self.is_leaving = False  # the server takes no new calls here

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.start({Setting.ENABLE_PUSH: 0, Setting.HEADER_TABLE_SIZE: 4096}, PREFACE)

    def call(self, path: str, metadata: Iterable[tuple[bytes, bytes]] = ()) -> ClientCall:
        """Begin a call; its request messages follow. metadata: lower-case names and values without line breaks."""
        fields = [
            (b":method", b"POST"),
            (b":scheme", self._scheme),
            (b":path", path.encode("ascii")),
            (b":authority", self._authority.encode("ascii")),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"user-agent", b"bistream-gate"),
            *metadata,
        ]
        stream = Stream(self, self._next_id, MAX_MESSAGE_BYTES, self._budget)
        self.last_stream_id = stream.id
        self._next_id += 2
        if self._next_id > LARGEST_WINDOW:  # the last number of a stream
            self.is_leaving = True
        self.streams[stream.id] = stream
        self.send_headers(stream.id, header_block(fields))
        return ClientCall(stream)

    def on_block(self, stream_id: int, fields: RawFields, ended: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id % 2 == 0 or stream_id > self.last_stream_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "headers of a stream that is not open")
        elif ended:
            stream.trailers = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}
            stream.take_end()

    def on_goaway(self, last_stream_id: int) -> None:
        self.is_leaving = True
        for stream in [stream for stream in self.streams.values() if stream.id > last_stream_id]:
            stream.lose()

    def on_check(self, now: float) -> None:
        if self.is_leaving and not self.streams:
            self.close()

    def on_lost(self) -> None:
        self._tell_lost(self)


class ClientCall:
    """One call of ours."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def listen(self, consumer: Callable[[bytes], None]) -> None:
        """Have every message taken by ``consumer`` as it comes. It must raise nothing: the connection belongs to all calls."""
        self._stream.consumer = consumer

    async def read(self) -> bytes | None:
        """The next message; ``None`` at the proper end. Raises ``CallFailed``."""
        try:
            message = await self._stream.read()
        except (StreamLost, BadMessage):
            raise CallFailed(grpc.StatusCode.UNAVAILABLE) from None
        if message is not None:
            return message
        trailers = self._stream.trailers or {}
        self._stream.close()
        status = _STATUS.get(trailers.get("grpc-status", ""), grpc.StatusCode.UNKNOWN)
        if status != grpc.StatusCode.OK:
            raise CallFailed(status, decoded_message(trailers.get("grpc-message", "")))
        return None

    async def write(self, message: bytes) -> None:
        """Raises ``CallFailed``."""
        try:
            await self._stream.write(message)
        except StreamLost:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE) from None

    def try_write(self, message: bytes) -> bool:
        """Send it if all of it has room now. False: nothing was sent. Not while ``write`` is under way."""
        return self._stream.try_write(message)

    def finish(self) -> None:
        """Half-close."""
        self._stream.end()

    def cancel(self) -> None:
        """Idempotent, and without effect on a call that has ended."""
        self._stream.abort(ErrorCode.CANCEL)


@dataclass(frozen=True)
class Tls:
    """context: with the protocol h2. name: of the server, which its certificate must have."""

    context: ssl.SSLContext
    name: str


async def connect(address: str, on_lost: Callable[[ClientConnection], None], tls: Tls | None = None) -> ClientConnection:
    """Raises ``OSError`` (``TimeoutError`` and ``ssl.SSLError`` are ones)."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    context, name, scheme = (None, None, b"http") if tls is None else (tls.context, tls.name, b"https")
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        transport, connection = await loop.create_connection(
            lambda: ClientConnection(address, on_lost, scheme), host.strip("[]"), int(port), ssl=context, server_hostname=name
        )
    if tls is not None and transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
        connection.abort()
        raise ConnectionError("it speaks no HTTP/2")  # RFC 9113, 3.2: with TLS both sides must say that they do
    return connection
