"""The calling side: one connection to a server that is trusted, and calls on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from gateway.http2.connection import Connection
from gateway.http2.frames import PREFACE, ErrorCode, Setting, Violation, decoded_message, header_block
from gateway.http2.stream import BadMessage, InputBudget, Stream, StreamLost

CONNECT_TIMEOUT_S = 2.0
STREAM_WINDOW = 4 * 1024 * 1024  # of audio on its way; all of it is read as it comes
CONNECTION_WINDOW = 256 * 1024 * 1024
MAX_FRAME = 128 * 1024  # one chunk of audio
_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class CallFailed(Exception):
    """The server ended a call with this status, or could not be reached (``UNAVAILABLE``)."""

    def __init__(self, status: grpc.StatusCode, details: str = "") -> None:
        super().__init__(details)
        self.status = status
        self.details = details


class ClientConnection(Connection):
    def __init__(self, authority: str, on_lost: Callable[[ClientConnection], None]) -> None:
        super().__init__(STREAM_WINDOW, CONNECTION_WINDOW, MAX_FRAME, is_trusted=True)
        self._authority = authority
        self._tell_lost = on_lost
        self._next_id = 1
        self._budget = InputBudget()
        self.is_leaving = False  # the server takes no new calls here

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.start({Setting.ENABLE_PUSH: 0, Setting.HEADER_TABLE_SIZE: 4096}, PREFACE)

    def call(self, path: str) -> ClientCall:
        """Begin a call; its request messages follow."""
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode("ascii")),
            (b":authority", self._authority.encode("ascii")),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"user-agent", b"bistream-gate"),
        ]
        stream = Stream(self, self._next_id, 0, self._budget)
        self.last_stream_id = stream.id
        self._next_id += 2
        self.streams[stream.id] = stream
        self.send_headers(stream.id, header_block(fields))
        return ClientCall(stream)

    def on_block(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self.last_stream_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "headers of a stream that is not open")
            return
        if ended:
            stream.trailers = fields
            stream.take_end()
        else:
            stream.headers = fields

    def on_goaway(self) -> None:
        self.is_leaving = True

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
        code = trailers.get("grpc-status", "")
        status = _STATUS.get(int(code), grpc.StatusCode.UNKNOWN) if code.isdigit() else grpc.StatusCode.UNKNOWN
        if status != grpc.StatusCode.OK:
            raise CallFailed(status, decoded_message(trailers.get("grpc-message", "")))
        return None

    async def write(self, message: bytes) -> None:
        """Raises ``CallFailed``."""
        try:
            await self._stream.write(message)
        except StreamLost:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE) from None

    def finish(self) -> None:
        """Half-close."""
        self._stream.end()

    def cancel(self) -> None:
        """Idempotent, and without effect on a call that has ended."""
        self._stream.abort(ErrorCode.CANCEL)


async def connect(address: str, on_lost: Callable[[ClientConnection], None]) -> ClientConnection:
    """Raises ``OSError`` (``TimeoutError`` is one)."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, connection = await loop.create_connection(lambda: ClientConnection(address, on_lost), host.strip("[]"), int(port))
    return connection
