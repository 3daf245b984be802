"""One call of a client, from its headers to the status with which it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from gateway.http2.frames import ErrorCode, encoded_message, header_block
from gateway.http2.stream import BadMessage, Stream, StreamLost

logger = logging.getLogger(__name__)

_RESPONSE = header_block([(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")])
_OK = header_block([(b"grpc-status", b"0")])
MAX_DETAILS = 512  # characters of a status; a character becomes up to 12 bytes, and all fields of a client's limit are 8 KiB


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
            raise CallError(error.status, str(error)) from None

    async def read_one(self, timeout_s: float) -> bytes:
        """The message of a unary call; empty when there is none. Raises ``CallError`` also when it does not come in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.read() or b""
        except TimeoutError:
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"No message came within {timeout_s:g} s.") from None

    def try_write(self, message: bytes) -> bool:
        """Send a message now, if there is room for all of it. Only while no ``write`` is under way."""
        return self._has_answered and self._stream.try_write(message)

    async def write(self, message: bytes, timeout_s: float | None = None) -> None:
        """Raises ``StreamLost`` when the client has gone, and ``CallError`` when it has not taken the message after ``timeout_s``."""
        if not self._has_answered:
            self._has_answered = True
            self._send_headers(self._stream.id, _RESPONSE, 0)
        self._is_sending = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.write(message)
        except TimeoutError:
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"The answer was not taken within {timeout_s:g} s.") from None
        self._is_sending = False

    def finish(self, status: grpc.StatusCode, details: str = "") -> None:
        """The status; a stream that stands in the midst of a message is reset instead."""
        stream = self._stream
        if self._is_sending:
            stream.abort(ErrorCode.CANCEL)
            return
        block = status_block(status, details)
        stream.end(block if self._has_answered else _RESPONSE + block)
        if stream.remote_ended:
            stream.lose()
        else:
            stream.abort(ErrorCode.NO_ERROR)  # what the client still sends is not wanted


Handler = Callable[[ServerCall], Awaitable[None]]


def status_block(status: grpc.StatusCode, details: str) -> bytes:
    """Trailers."""
    if status == grpc.StatusCode.OK:
        return _OK
    return header_block([(b"grpc-status", str(status.value[0]).encode()), (b"grpc-message", encoded_message(details[:MAX_DETAILS]))])


def refusal_block(status: grpc.StatusCode, details: str) -> bytes:
    """Headers and trailers in one, of a call that is refused before anything of it is read."""
    return _RESPONSE + status_block(status, details)


async def run_call(handler: Handler, call: ServerCall) -> None:
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
