"""One HTTP/2 stream that carries gRPC messages: what has come and was not read yet, what may be sent, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from gateway.budget import Budget
from gateway.http2.fields import Malformed
from gateway.http2.frames import LARGEST_WINDOW, MESSAGE_HEAD_BYTES, ErrorCode, Flag, Kind, Violation, frame, reset, window_update

if TYPE_CHECKING:
    from gateway.http2.connection import Connection

GRANT_BYTES = 16_384  # received and used, before the peer is told that there is room again
MESSAGE_OVERHEAD_BYTES = 64  # what a message that waits takes beside its contents
MESSAGE_TIMEOUT_S = 60.0  # from the first byte of a message to its last


class StreamLost(Exception):
    """The peer reset the stream, or the connection is gone."""


class BadMessage(Exception):
    """A message that is compressed, too large, too slow, or cut off."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Stream:
    """Made by its connection. One task may read and one may write at a time.

    max_message_bytes: a longer message is ``BadMessage``; 0 is no limit. expected_bytes: what the peer announced as content-length.
    """

    def __init__(self, connection: Connection, stream_id: int, max_message_bytes: int, budget: Budget) -> None:
        self.id = stream_id
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] | None = None
        self.expected_bytes: int | None = None
        self.remote_ended = False
        self.is_closed = False  # nothing goes in either direction any more
        self.send_window = connection.peer_initial_window
        self.consumer: Callable[[bytes], None] | None = None  # takes every message at once; ``read`` then waits for the end alone
        self._connection = connection
        self._max_message_bytes = max_message_bytes
        self._receive_window = connection.initial_window
        self._used = 0  # bytes received that the peer may send again
        self._received = 0
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0  # of the messages, their overhead included
        self._read_bytes = 0  # of the message that was read last: it is in use until the next one is asked for
        self._partial = bytearray()
        self._partial_since = 0.0
        self._budget = budget
        self._budgeted = 0
        self._bad: BadMessage | None = None
        self._local_ended = False
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None  # the task that writes waits for this stream's window,
        self._turn: asyncio.Future[None] | None = None  # or for its turn on the connection

    # In

    def take_data(self, payload: bytes, size: int, ended: bool) -> bool:
        """A DATA frame; whether it brought a message. size: what it counts for flow control. Raises ``Violation``, ``Malformed``."""
        if self.remote_ended:
            raise Violation(ErrorCode.STREAM_CLOSED, "data after the end of a stream")
        self._receive_window -= size
        if self._receive_window < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than a stream's window")
        self._used += size
        self._received += len(payload)
        if self.expected_bytes is not None and self._received > self.expected_bytes:
            raise Malformed("more data than was announced")
        has_message = self._take_bytes(payload)
        if ended:
            self.take_end()
        if not self._messages:
            self._grant()
        if self.consumer is None or ended or self._bad is not None:
            _wake(self._reader)
        return has_message

    def take_end(self) -> None:
        """The peer sends no more. Raises ``Violation`` and ``Malformed``."""
        if self.remote_ended:
            raise Violation(ErrorCode.STREAM_CLOSED, "a second end of a stream")
        self.remote_ended = True
        if self.expected_bytes is not None and self._received != self.expected_bytes:
            raise Malformed("less data than was announced")
        if self._partial:
            self._refuse(grpc.StatusCode.INTERNAL, "The last message was cut off.")
        _wake(self._reader)

    def _take_bytes(self, payload: bytes) -> bool:
        if self._bad is not None:
            return False
        partial = self._partial
        if not partial and len(payload) >= MESSAGE_HEAD_BYTES and payload[0] == 0:
            size = int.from_bytes(payload[1:5], "big")
            if size == len(payload) - MESSAGE_HEAD_BYTES and not 0 < self._max_message_bytes < size:  # one whole message, as nearly always
                self._deliver(payload[MESSAGE_HEAD_BYTES:])
                return True
        partial += payload
        has_message = self._split_partial(partial)
        self._count_held()
        if self._budget.is_exceeded and self._budgeted > GRANT_BYTES:
            self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "The server holds too many unfinished messages; try again later.")
        if not partial:
            self._partial_since = 0.0
        elif has_message or not self._partial_since:
            self._partial_since = self._connection.heard_at
        return has_message

    def _split_partial(self, partial: bytearray) -> bool:
        has_message = False
        while len(partial) >= MESSAGE_HEAD_BYTES and self._bad is None:
            size = int.from_bytes(partial[1:5], "big")
            if partial[0]:
                self._refuse(grpc.StatusCode.UNIMPLEMENTED, "Compressed messages are not served here.")
            elif 0 < self._max_message_bytes < size:
                words = f"A message of {size} bytes is larger than the limit of {self._max_message_bytes}."
                self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
            elif len(partial) < MESSAGE_HEAD_BYTES + size:
                break
            else:
                message = bytes(partial[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + size])
                del partial[: MESSAGE_HEAD_BYTES + size]
                self._deliver(message)
                has_message = True
        return has_message

    def _deliver(self, message: bytes) -> None:
        if self.consumer is None:
            self._messages.append(message)
            self._queued_bytes += len(message) + MESSAGE_OVERHEAD_BYTES
            self._count_held()
        else:
            self.consumer(message)

    def _refuse(self, status: grpc.StatusCode, reason: str) -> None:
        """Messages that came whole are still read; nothing more is taken."""
        self._bad = self._bad or BadMessage(status, reason)
        self._partial.clear()
        self._count_held()
        _wake(self._reader)

    def _count_held(self) -> None:
        held = 0 if self.is_closed else len(self._partial) + self._queued_bytes + self._read_bytes
        self._budget.add(held - self._budgeted)
        self._budgeted = held

    def check_pace(self, now: float) -> None:
        """A message that does not come to its end in time is not waited for."""
        if self._partial_since and now - self._partial_since > MESSAGE_TIMEOUT_S:
            self._partial_since = 0.0
            self._refuse(grpc.StatusCode.DEADLINE_EXCEEDED, f"A message was not complete after {MESSAGE_TIMEOUT_S:.0f} s.")

    def _grant(self) -> None:
        if self._used >= GRANT_BYTES and not self.is_closed and not self.remote_ended and self._bad is None:
            self._receive_window += self._used
            self._connection.send(window_update(self.id, self._used))
            self._used = 0

    async def read(self) -> bytes | None:
        """The next message; ``None`` after the last one. The one before is done with. Raises ``StreamLost`` and ``BadMessage``."""
        if self._read_bytes:
            self._read_bytes = 0
            self._count_held()
        while not self._messages:
            if self._bad is not None:
                raise self._bad
            if self.remote_ended:
                return None
            if self.is_closed:
                raise StreamLost
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._messages.popleft()
        self._read_bytes = len(message) + MESSAGE_OVERHEAD_BYTES
        self._queued_bytes -= self._read_bytes
        if not self._messages:
            self._grant()
        return message

    # Out

    async def write(self, message: bytes) -> None:
        """Send one message; returns when all of it has room. Raises ``StreamLost``."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        connection, sent, has_turn = self._connection, 0, False
        try:
            while sent < len(data):
                if self.is_closed or self._local_ended:
                    raise StreamLost
                room = min(self.send_window, len(data) - sent)
                if room <= 0:
                    if has_turn:
                        has_turn = False
                        connection.pass_turn()
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
                elif not connection.has_room:
                    await self._wait_for_turn()
                    has_turn = True
                else:
                    room = min(room, connection.send_window)
                    self._send_data(data, sent, sent + room)
                    sent += room
        finally:
            if has_turn:
                connection.pass_turn()

    async def _wait_for_turn(self) -> None:
        self._turn = asyncio.get_running_loop().create_future()
        self._connection.queue.append(self._turn)
        try:
            await self._turn
        except asyncio.CancelledError:
            self._connection.pass_turn()  # it may have come already
            raise

    def widen(self, increment: int) -> None:
        """The peer allows so many bytes more, or fewer where it is negative. Raises ``Violation``."""
        self.send_window += increment
        if self.send_window > LARGEST_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit")
        if self.send_window > 0:
            _wake(self._room)

    def try_write(self, message: bytes) -> bool:
        """Send one message if all of it has room now. False: nothing was sent."""
        connection, size = self._connection, MESSAGE_HEAD_BYTES + len(message)
        if connection.is_paused or self.is_closed or self._local_ended or size > min(self.send_window, connection.send_window):
            return False
        self._send_data(b"\0" + len(message).to_bytes(4, "big") + message, 0, size)
        return True

    def _send_data(self, data: bytes, begin: int, end: int) -> None:
        connection = self._connection
        self.send_window -= end - begin
        connection.count_sent(end - begin)
        step = connection.peer_max_frame
        if begin == 0 and end == len(data) <= step:
            connection.send(frame(Kind.DATA, 0, self.id, data))
            return
        pieces = [frame(Kind.DATA, 0, self.id, data[at : min(at + step, end)]) for at in range(begin, end, step)]
        connection.send(b"".join(pieces))

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
        self._count_held()
        self._connection.forget(self)
        _wake(self._reader)
        _wake(self._room)
        _wake(self._turn)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
