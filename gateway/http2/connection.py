"""One HTTP/2 connection, of either role: windows, settings, pings, and the transport. A peer that breaks the protocol loses it.

Received data is bounded by the windows that it grants, and while a peer takes nothing, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from gateway.http2.frame_reader import MAX_HEADER_BYTES, FrameReader
from gateway.http2.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    Violation,
    frame,
    goaway,
    settings_frame,
    unpadded,
    window_update,
)
from gateway.http2.stream import Stream

logger = logging.getLogger(__name__)

HIGH_WATER_BYTES = 512 * 1024  # handed to the transport and not taken by the peer
LARGEST_FRAME_SENT = 128 * 1024
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10.0, 5.0  # a peer that is quiet so long is asked, and has so long to answer
LATE_S = 2.0  # a check that comes so late says nothing about the peer: it was this process that stood still
STALL_S = 150.0  # a peer that takes nothing for so long is given up
_PING = b"bistream"


class Connection(FrameReader, asyncio.Protocol):
    """initial_window: of every stream, and ``connection_window`` of all together, what the peer may send before it is used.

    is_trusted: the peer is read also while it takes nothing, and frames for it are gathered for one system call in each turn of the
    event loop, which pays where many streams share the connection.
    """

    def __init__(self, initial_window: int, connection_window: int, max_frame: int, is_trusted: bool) -> None:
        super().__init__(max_frame)
        self.initial_window = initial_window
        self.streams: dict[int, Stream] = {}
        self.peer_initial_window = DEFAULT_WINDOW
        self.peer_max_frame = DEFAULT_MAX_FRAME
        self.send_window = DEFAULT_WINDOW
        self.is_paused = False  # the peer does not take what we send
        self.is_lost = False
        self.last_stream_id = 0  # the highest that was opened
        self._connection_window = connection_window
        self._receive_window = connection_window
        self._used = 0  # bytes received that the peer was not allowed again
        self._is_trusted = is_trusted
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._outbox: list[bytes] = []
        self._room: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
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
        values[Setting.MAX_HEADER_LIST_SIZE] = MAX_HEADER_BYTES
        self.send(preface + settings_frame(values))
        self.send(window_update(0, self._connection_window - DEFAULT_WINDOW))

    def is_over(self) -> bool:
        return self.is_lost or bool(self._transport.is_closing())

    def send(self, data: bytes) -> None:
        """Frames for the peer; dropped when the connection is over."""
        if self._is_trusted:
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
        if not self._is_trusted and not self.is_over():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        if not self._is_trusted and not self.is_over():
            self._transport.resume_reading()
        self.wake_writers()

    async def wait_for_room(self) -> None:
        """Until something has changed about the windows, the transport or a stream."""
        if self._room is None or self._room.done():
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def wake_writers(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self.streams.values()):
            stream.lose()
        self.wake_writers()
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
            is_mute = self._pinged_at > self._heard_at and now - self._pinged_at > KEEPALIVE_TIMEOUT_S / 2
            is_stuck = self.is_paused and now - self._paused_at > STALL_S
            if is_stuck or (is_mute and not self.is_paused):
                self.abort()
                return
            if now - self._heard_at >= KEEPALIVE_S and self._pinged_at <= self._heard_at:
                self._pinged_at = now
                self.send(frame(Kind.PING, 0, 0, _PING))
            self.on_check(now)
        self._schedule_check(KEEPALIVE_TIMEOUT_S)

    # Frames in

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            after = self.skip_preface(data)
            self._rest = data if after is None else self.read_frames(after)
        except Violation as violation:
            logger.debug("a connection is given up: %s", violation)
            self.close(violation.code)

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._used += size
        if self._used >= self._connection_window // 2:  # the streams' windows bound what is kept
            self._receive_window += self._used
            self.send(window_update(0, self._used))
            self._used = 0
        if flags & Flag.PADDED:
            payload = unpadded(flags, payload)
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.take_data(payload, size, bool(flags & Flag.END_STREAM))
        else:
            self._check_was_open(stream_id)

    def on_reset(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.lose()
        else:
            self._check_was_open(stream_id)

    def _check_was_open(self, stream_id: int) -> None:
        """A frame for a stream that has ended is nothing wrong: it was on its way."""
        if stream_id == 0 or stream_id > self.last_stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame for a stream that was never open")

    def on_settings(self, values: Iterable[tuple[int, int]]) -> None:
        for key, value in values:
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "an initial window over the limit")
                for stream in self.streams.values():
                    stream.send_window += value - self.peer_initial_window
                self.peer_initial_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_MAX_FRAME <= value < 2**24:
                    raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame size out of range")
                self.peer_max_frame = min(value, LARGEST_FRAME_SENT)
        self.send(frame(Kind.SETTINGS, Flag.ACK, 0))
        self.wake_writers()

    def on_ping(self, payload: bytes) -> None:
        self.send(frame(Kind.PING, Flag.ACK, 0, payload))

    def on_window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self.send_window += increment
            window = self.send_window
        else:
            stream = self.streams.get(stream_id)
            if stream is None:
                self._check_was_open(stream_id)
                return
            stream.send_window += increment
            window = stream.send_window
        if window > LARGEST_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit")
        self.wake_writers()
