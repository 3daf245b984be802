"""One HTTP/2 connection, of either role: frames in and out, windows, settings, pings. A peer that breaks the protocol loses it.

What a hostile peer can make it keep or do is bounded: frames by ``max_frame``, header blocks by ``MAX_HEADER_BYTES``, received data by the
windows that it grants, frames that cost the peer nothing by a rate, and while the peer takes nothing, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import hpack

from gateway.http2.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    FRAME_HEAD_BYTES,
    LARGEST_WINDOW,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    Violation,
    frame,
    goaway,
    read_settings,
    settings_frame,
    unpadded,
    window_update,
)
from gateway.http2.stream import Stream

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16_384
IDLE_FRAMES_BURST, IDLE_FRAMES_PER_SECOND = 2000.0, 500.0  # calls, resets, pings, settings, empty data
HIGH_WATER_BYTES = 512 * 1024  # handed to the transport and not taken by the peer
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10.0, 5.0
LATE_S = 2.0
STALL_S = 150.0
_PING = b"bistream"


class Connection(asyncio.Protocol):
    """initial_window: of every stream, and ``connection_window`` of all together, what the peer may send before it is used.
    is_trusted: what a peer sends is read also while it takes nothing."""

    def __init__(self, initial_window: int, connection_window: int, max_frame: int, is_trusted: bool) -> None:
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
        self._used = 0
        self._max_frame = max_frame
        self._is_trusted = is_trusted
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and bytes of a header block that goes on
        self._room: asyncio.Future[None] | None = None
        self._idle_frames = IDLE_FRAMES_BURST
        self._idle_frames_at = self._loop.time()
        self._heard_at = self._loop.time()
        self._paused_at = 0.0
        self._check_at = 0.0
        self._pinged_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_settings = False
        self._handlers = {
            Kind.DATA: self._on_data,
            Kind.HEADERS: self._on_headers,
            Kind.PRIORITY: self._on_priority,
            Kind.RST_STREAM: self._on_reset,
            Kind.SETTINGS: self._on_settings,
            Kind.PUSH_PROMISE: self._on_push,
            Kind.PING: self._on_ping,
            Kind.GOAWAY: self._on_goaway,
            Kind.WINDOW_UPDATE: self._on_window_update,
            Kind.CONTINUATION: self._on_continuation,
        }

    # To be overridden by the roles

    def on_block(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        """A header block has come."""
        raise NotImplementedError

    def on_goaway(self) -> None:
        """The peer takes no new streams."""

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
        values = {**settings, Setting.INITIAL_WINDOW_SIZE: self.initial_window, Setting.MAX_FRAME_SIZE: self._max_frame}
        values[Setting.MAX_HEADER_LIST_SIZE] = MAX_HEADER_BYTES
        self.send(preface + settings_frame(values))
        self.send(window_update(0, self._connection_window - DEFAULT_WINDOW))

    def send(self, data: bytes) -> None:
        if not self.is_lost and not self._transport.is_closing():
            self._transport.write(data)

    def send_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """A header block of ours, which always fits one frame."""
        self.send(frame(Kind.HEADERS, flags | Flag.END_HEADERS, stream_id, block))

    def pause_writing(self) -> None:
        self.is_paused, self._paused_at = True, self._loop.time()
        if not self._is_trusted and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        if not self._is_trusted and not self._transport.is_closing():
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
        if now - self._check_at < LATE_S:  # else it was this process that stood still
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
            self._rest = data if after is None else self._take_frames(after)
        except Violation as violation:
            logger.debug("a connection is given up: %s", violation)
            self.close(violation.code)

    def _take_frames(self, data: bytes) -> bytes:
        """Handle the frames in ``data``; returns the rest that is no whole frame."""
        at, end = 0, len(data)
        while end - at >= FRAME_HEAD_BYTES:
            head = int.from_bytes(data[at : at + FRAME_HEAD_BYTES], "big")
            size = head >> 48
            if size > self._max_frame:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame over the limit")
            begin = at + FRAME_HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._take_frame(head >> 40 & 0xFF, head >> 32 & 0xFF, head & LARGEST_WINDOW, data[begin:at])
        return data[at:] if at else data

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self.is_lost or self._transport.is_closing():
            return
        if self._block is not None and kind != Kind.CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if not self._has_settings and kind != Kind.SETTINGS:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        handler = self._handlers.get(kind)  # type: ignore[call-overload]
        if handler is None:
            self._charge()
        else:
            handler(flags, stream_id, payload)

    def _charge(self) -> None:
        """Count a frame that costs the peer little."""
        now = self._loop.time()
        refilled = self._idle_frames + IDLE_FRAMES_PER_SECOND * (now - self._idle_frames_at)
        self._idle_frames, self._idle_frames_at = min(IDLE_FRAMES_BURST, refilled) - 1.0, now
        if self._idle_frames < 0:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many calls or frames without content")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size, ended = len(payload), bool(flags & Flag.END_STREAM)
        if not size and not ended:
            self._charge()
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
            stream.take_data(payload, size, ended)
        elif stream_id == 0 or stream_id > self.last_stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "data for a stream that is not open")

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "headers without a stream")
        self._take_block(stream_id, flags, bytearray(unpadded(flags, payload, has_priority=True)))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        if not payload:
            self._charge()
        _, first_flags, block = self._block
        block += payload
        self._take_block(stream_id, first_flags | flags & Flag.END_HEADERS, block)

    def _take_block(self, stream_id: int, flags: int, block: bytearray) -> None:
        if len(block) > MAX_HEADER_BYTES:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block over the limit")
        if not flags & Flag.END_HEADERS:
            self._block = (stream_id, flags, block)
            return
        self._block = None
        try:
            fields = {_text(name): _text(value) for name, value in self._decoder.decode(bytes(block), raw=True)}
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "a damaged header block") from error
        self.on_block(stream_id, fields, bool(flags & Flag.END_STREAM))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        if len(payload) != 5:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame of wrong size")

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM frame of wrong size")
        if stream_id == 0 or stream_id > self.last_stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a reset of a stream that is not open")
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.lose()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & Flag.ACK:
            if payload:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        self._charge()
        for key, value in read_settings(payload):
            self._set(key, value)
        self._has_settings = True
        self.send(frame(Kind.SETTINGS, Flag.ACK, 0))
        self.wake_writers()

    def _set(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > LARGEST_WINDOW:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "an initial window over the limit")
            for stream in self.streams.values():
                stream.send_window += value - self.peer_initial_window
            self.peer_initial_window = value
        elif key == Setting.MAX_FRAME_SIZE:
            if not DEFAULT_MAX_FRAME <= value < 2**24:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame size out of range")
            self.peer_max_frame = min(value, 128 * 1024)

    def _on_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a pushed stream")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a PING frame of wrong size")
        self._charge()
        if not flags & Flag.ACK:
            self.send(frame(Kind.PING, Flag.ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        self.on_goaway()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame of wrong size")
        increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
        if increment == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "an increment of 0")
        if stream_id == 0:
            self.send_window += increment
            too_large = self.send_window > LARGEST_WINDOW
        else:
            stream = self.streams.get(stream_id)
            if stream is None:
                if stream_id > self.last_stream_id:
                    raise Violation(ErrorCode.PROTOCOL_ERROR, "a window of a stream that is not open")
                return
            stream.send_window += increment
            too_large = stream.send_window > LARGEST_WINDOW
        if too_large:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit")
        self.wake_writers()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
