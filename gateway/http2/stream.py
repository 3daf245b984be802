"""One HTTP/2 stream that carries gRPC messages: what has come and was not read yet, what may be sent, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.http2.frames import MESSAGE_HEAD_BYTES, ErrorCode, Flag, Kind, Violation, frame, reset, window_update

if TYPE_CHECKING:
    from gateway.http2.connection import Connection

GRANT_BYTES = 16_384  # received and used, before the peer is told that there is room again


class StreamLost(Exception):
    """The peer reset the stream, or the connection is gone."""


class BadMessage(Exception):
    """A message that is compressed, too large, or cut off."""


@dataclass
class InputBudget:
    """What all streams together may hold of messages that have not come to their end. limit: bytes; 0 is no limit."""

    limit: int = 0
    used: int = 0

    @property
    def is_exceeded(self) -> bool:
        return 0 < self.limit < self.used


class Stream:
    """Made by its connection. One task may read and one may write at a time.

    max_message_bytes: a longer message is ``BadMessage``; 0 is no limit.
    """

    def __init__(self, connection: Connection, stream_id: int, max_message_bytes: int, budget: InputBudget) -> None:
        self.id = stream_id
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] | None = None
        self.remote_ended = False
        self.is_closed = False  # nothing goes in either direction any more
        self.send_window = connection.peer_initial_window
        self._connection = connection
        self._max_message_bytes = max_message_bytes
        self._receive_window = connection.initial_window
        self._used = 0  # bytes received that the peer may send again
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._budget = budget
        self._budgeted = 0
        self._bad: str | None = None
        self._local_ended = False
        self._reader: asyncio.Future[None] | None = None
        self.consumer: Callable[[bytes], None] | None = None  # takes every message at once; ``read`` then waits for the end alone

    # In

    def take_data(self, payload: bytes, size: int, ended: bool) -> None:
        """A DATA frame. size: what it counts for flow control."""
        if self.remote_ended:
            raise Violation(ErrorCode.STREAM_CLOSED, "data after the end of a stream")
        self._receive_window -= size
        if self._receive_window < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than a stream's window")
        self._used += size
        self._take_bytes(payload)
        if ended:
            self.take_end()
        if not self._messages:
            self._grant()
        if self.consumer is None or ended or self._bad is not None:
            self._wake_reader()

    def take_end(self) -> None:
        """The peer sends no more."""
        self.remote_ended = True
        if self._partial and self._bad is None:
            self._bad = "The last message was cut off."
        self._wake_reader()

    def _take_bytes(self, payload: bytes) -> None:
        if self._bad is not None:
            return
        partial = self._partial
        if not partial and len(payload) >= MESSAGE_HEAD_BYTES and payload[0] == 0:
            if int.from_bytes(payload[1:5], "big") == len(payload) - MESSAGE_HEAD_BYTES:  # one whole message, as nearly always
                self._deliver(payload[MESSAGE_HEAD_BYTES:])
                return
        partial += payload
        while len(partial) >= MESSAGE_HEAD_BYTES and self._bad is None:
            size = int.from_bytes(partial[1:5], "big")
            if partial[0]:
                self._bad = "Compressed messages are not served here."
            elif self._max_message_bytes and size > self._max_message_bytes:
                self._bad = f"A message of {size} bytes is larger than the limit of {self._max_message_bytes}."
            elif len(partial) < MESSAGE_HEAD_BYTES + size:
                break
            else:
                message = bytes(partial[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + size])
                del partial[: MESSAGE_HEAD_BYTES + size]
                self._deliver(message)
        self._count_partial()
        if self._budget.is_exceeded and len(partial) > GRANT_BYTES:
            self._bad = "The server holds too many unfinished messages; try again later."
        if self._bad is not None:
            partial.clear()
            self._count_partial()

    def _deliver(self, message: bytes) -> None:
        if self.consumer is None:
            self._messages.append(message)
        else:
            self.consumer(message)

    def _count_partial(self) -> None:
        self._budget.used += len(self._partial) - self._budgeted
        self._budgeted = len(self._partial)

    def _grant(self) -> None:
        if self._used >= GRANT_BYTES and not self.is_closed and not self.remote_ended and self._bad is None:
            self._receive_window += self._used
            self._connection.send(window_update(self.id, self._used))
            self._used = 0

    async def read(self) -> bytes | None:
        """The next message; ``None`` after the last one. Raises ``StreamLost`` and ``BadMessage``."""
        while not self._messages:
            if self._bad is not None:
                raise BadMessage(self._bad)
            if self.remote_ended:
                return None
            if self.is_closed:
                raise StreamLost
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._messages.popleft()
        if not self._messages:
            self._grant()
        return message

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Out

    async def write(self, message: bytes) -> None:
        """Send one message; returns when all of it has room. Raises ``StreamLost``."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        connection, sent = self._connection, 0
        while True:
            if self.is_closed or self._local_ended:
                raise StreamLost
            room = min(self.send_window, connection.send_window, len(data) - sent)
            if room > 0 and not connection.is_paused:
                self.send_window -= room
                connection.send_window -= room
                self._send_data(data, sent, sent + room)
                sent += room
                if sent == len(data):
                    return
            else:
                await connection.wait_for_room()

    def try_write(self, message: bytes) -> bool:
        """Send one message if all of it has room now. False: nothing was sent."""
        connection, size = self._connection, MESSAGE_HEAD_BYTES + len(message)
        if connection.is_paused or self.is_closed or self._local_ended or size > min(self.send_window, connection.send_window):
            return False
        self.send_window -= size
        connection.send_window -= size
        self._send_data(b"\0" + len(message).to_bytes(4, "big") + message, 0, size)
        return True

    def _send_data(self, data: bytes, begin: int, end: int) -> None:
        step = self._connection.peer_max_frame
        if begin == 0 and end == len(data) <= step:
            self._connection.send(frame(Kind.DATA, 0, self.id, data))
            return
        pieces = [frame(Kind.DATA, 0, self.id, data[at : min(at + step, end)]) for at in range(begin, end, step)]
        self._connection.send(b"".join(pieces))

    def end(self, trailers: bytes | None = None) -> None:
        """Send no more: trailers (an encoded header block) or an empty last frame. Idempotent."""
        if self.is_closed or self._local_ended:
            return
        self._local_ended = True
        if trailers is None:
            self._connection.send(frame(Kind.DATA, Flag.END_STREAM, self.id))
        else:
            self._connection.send_headers(self.id, trailers, Flag.END_STREAM)

    def abort(self, code: ErrorCode) -> None:
        """End both directions at once. Idempotent."""
        if not self.is_closed:
            self._connection.send(reset(self.id, code))
            self.lose()

    def close(self) -> None:
        """The peer has ended its side: the stream is over, and what we have not sent is not sent."""
        if self._local_ended:
            self.lose()
        else:
            self.abort(ErrorCode.NO_ERROR)

    def lose(self) -> None:
        """The stream is gone; whoever waits for it is told."""
        self.is_closed = True
        self._partial.clear()
        self._count_partial()
        self._connection.forget(self)
        self._wake_reader()
        self._connection.wake_writers()
