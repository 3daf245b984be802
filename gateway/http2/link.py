"""The transport under one HTTP/2 connection: what goes out, who may write, whether the peer is read, and whether it still lives."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from gateway.http2.frame_reader import FrameReader
from gateway.http2.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    frame,
    goaway,
    settings_frame,
    window_update,
)

if TYPE_CHECKING:
    from gateway.http2.stream import Stream

HIGH_WATER_BYTES = 512 * 1024  # handed to the transport and not taken by the peer
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10.0, 5.0  # a peer that is quiet so long is asked, and has so long to answer
LATE_S = 2.0  # a check that comes so late says nothing about the peer: it was this process that stood still
STALL_S = 150.0  # a peer that takes nothing for so long is given up
PARTIAL_TIMEOUT_S = 60.0  # for the rest of a frame, and of a header block, that has begun
SENT_BYTES_PER_CREDIT = 2048  # frames without content that the peer may send because of what we have sent
MAX_THROTTLE_S = 1.0  # for so long at a time nothing is read from an address that owes a toll
_PING = b"bistream"


class Link(FrameReader, asyncio.Protocol):
    """initial_window: of every stream, and ``connection_window`` of all together, what the peer may send before it is used.

    is_trusted: the peer is read also while it takes nothing, and frames for it are gathered for one system call in each turn of the
    event loop, which pays where many streams share the connection.
    """

    def __init__(self, initial_window: int, connection_window: int, max_frame: int, is_trusted: bool) -> None:
        super().__init__(max_frame, is_trusted)
        self.initial_window = initial_window
        self.streams: dict[int, Stream] = {}
        self.peer_initial_window = DEFAULT_WINDOW
        self.peer_max_frame = DEFAULT_MAX_FRAME
        self.send_window = DEFAULT_WINDOW
        self.is_paused = False  # the peer does not take what we send
        self.is_lost = False
        self.last_stream_id = 0  # the highest that was opened
        self.queue: deque[asyncio.Future[None]] = deque()  # of writers that wait for the connection's window or transport
        self._connection_window = connection_window
        self._receive_window = connection_window
        self._used = 0  # bytes received that the peer was not allowed again
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._outbox: list[bytes] = []
        self.heard_at = self._loop.time()  # when something last came
        self._partial_at = 0.0  # when a frame or a header block began that is not complete; 0: there is none
        self._throttle: asyncio.TimerHandle | None = None
        self._paused_at = 0.0
        self._check_at = 0.0
        self._pinged_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # To be overridden by the roles

    def on_check(self, now: float) -> None:
        """Called every few seconds."""

    def on_lost(self) -> None:
        """The connection is gone; its streams know already."""

    def skip_preface(self, data: bytes) -> bytes | None:
        """``data`` without the preface; ``None`` while it is not complete."""
        return data

    # The transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._schedule_check(KEEPALIVE_S)

    def start(self, settings: dict[Setting, int], preface: bytes = b"") -> None:
        """Send our settings. The windows follow from the constructor."""
        values = {**settings, Setting.INITIAL_WINDOW_SIZE: self.initial_window, Setting.MAX_FRAME_SIZE: self.max_frame}
        values[Setting.MAX_HEADER_LIST_SIZE] = self.max_header_bytes
        self.send(preface + settings_frame(values))
        self.send(window_update(0, self._connection_window - DEFAULT_WINDOW))

    def is_over(self) -> bool:
        return self.is_lost or bool(self._transport.is_closing())

    def send(self, data: bytes) -> None:
        """Frames for the peer; dropped when the connection is over."""
        if self.is_trusted:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(data)
        elif not self.is_over():
            self._transport.write(data)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if data and not self.is_over():
            self._transport.write(data)

    def send_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """A header block of ours, which always fits one frame."""
        self.send(frame(Kind.HEADERS, flags | Flag.END_HEADERS, stream_id, block))

    def pause_writing(self) -> None:
        self.is_paused, self._paused_at = True, self._loop.time()
        self._update_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._update_reading()
        self.pass_turn()

    def _update_reading(self) -> None:
        """Nothing is read from a peer that takes nothing, or whose address owes a toll."""
        if self.is_trusted or self.is_over():
            return
        if self.is_paused or self._throttle is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _collect_toll(self) -> None:
        debt_s = 0.0 if self.address_toll is None else self.address_toll.debt_s
        if debt_s and self._throttle is None and not self.is_over():
            self._throttle = self._loop.call_later(min(debt_s, MAX_THROTTLE_S), self._end_throttle)
            self._update_reading()

    def _end_throttle(self) -> None:
        self._throttle = None
        self._collect_toll()
        self._update_reading()

    @property
    def has_room(self) -> bool:
        """Whether anything may be sent now, as far as the connection is concerned."""
        return self.send_window > 0 and not self.is_paused

    def pass_turn(self) -> None:
        """Wake the next writer, if there is room. One at a time: a peer that grants a byte wakes one task, not all of them."""
        while self.queue and self.has_room:
            turn = self.queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def count_sent(self, size: int) -> None:
        self.send_window -= size
        if not self.is_trusted:
            self.credit(size / SENT_BYTES_PER_CREDIT)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        for timer in (self._timer, self._throttle):
            if timer is not None:
                timer.cancel()
        for stream in list(self.streams.values()):
            stream.lose()
        self.on_lost()

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)

    def send_goaway(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        self.send(goaway(self.last_stream_id, code))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Say goodbye and close once everything has been sent."""
        if not self.is_lost:
            self.send_goaway(code)
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if not self.is_lost and self._transport is not None:
            self._transport.abort()

    def _schedule_check(self, delay_s: float) -> None:
        self._check_at = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._check_alive)

    def _check_alive(self) -> None:
        """A ping to a peer that is quiet, and the end of one that does not answer it or takes nothing for very long."""
        now = self._loop.time()
        if now - self._check_at < LATE_S:
            is_mute = self._pinged_at > self.heard_at and now - self._pinged_at > KEEPALIVE_TIMEOUT_S / 2
            is_stuck = self.is_paused and now - self._paused_at > STALL_S
            is_slow = self._partial_at > 0 and now - self._partial_at > PARTIAL_TIMEOUT_S
            if is_stuck or (not self.is_paused and self._throttle is None and (is_mute or is_slow)):
                self.abort()
                return
            if now - self.heard_at >= KEEPALIVE_S and self._pinged_at <= self.heard_at:
                self._pinged_at = now
                self.send(frame(Kind.PING, 0, 0, _PING))
            for stream in list(self.streams.values()):
                stream.check_pace(now)
            self.on_check(now)
        self._schedule_check(KEEPALIVE_TIMEOUT_S)
