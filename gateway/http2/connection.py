"""One HTTP/2 connection, of either role: windows, settings, and the frames for its streams. A peer that breaks the protocol loses it.

Received data is bounded by the windows that it grants, and while a peer takes nothing, nothing more is read from it.
"""

from __future__ import annotations

import logging

from gateway.http2.fields import Malformed
from gateway.http2.frames import (
    DEFAULT_MAX_FRAME,
    LARGEST_WINDOW,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    Violation,
    frame,
    unpadded,
    window_update,
)
from gateway.http2.link import Link

logger = logging.getLogger(__name__)

LARGEST_FRAME_SENT = 128 * 1024
SMALL_DATA_BYTES = 256  # of a DATA frame without a whole message: it costs a toll
STREAMS_PER_TOKEN = 16  # whose windows a setting changes
MESSAGE_CREDIT = 2.0  # frames without content that a message allows: its windows are granted again


class Connection(Link):
    """The frames of a connection, for its streams."""

    # Frames in

    def data_received(self, data: bytes) -> None:
        if self.is_over():
            return
        self.heard_at = self._loop.time()
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            after = self.skip_preface(data)
            self._rest = data if after is None else self.read_frames(after)
        except Violation as violation:
            logger.debug("a connection is given up: %s", violation)
            self.close(violation.code)
            if self.is_trusted:  # its streams are told at once
                self.abort()
            return
        self._note_progress(len(data))
        if not self.is_trusted:
            self._collect_toll()

    def _note_progress(self, size: int) -> None:
        if not self._rest and self._block is None:
            self._partial_at = 0.0
        elif not self._partial_at or (self._block is None and len(self._rest) < size):
            self._partial_at = self.heard_at

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
        if stream is None:
            self._check_was_open(stream_id)
            self.charge()
            return
        try:
            has_message = stream.take_data(payload, size, bool(flags & Flag.END_STREAM))
        except Malformed:
            stream.abort(ErrorCode.PROTOCOL_ERROR)
            return
        if not self.is_trusted:
            if has_message:
                self.credit(MESSAGE_CREDIT)
            elif size < SMALL_DATA_BYTES:
                self.charge()

    def on_reset(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.lose()
        else:
            self._check_was_open(stream_id)

    def _check_was_open(self, stream_id: int) -> None:
        """A frame for a stream that has ended is nothing wrong: it was on its way."""
        if stream_id % 2 == 0 or stream_id > self.last_stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame for a stream that was never open")

    def on_settings(self, values: dict[int, int]) -> None:
        if values.get(Setting.ENABLE_PUSH, 0) > 1:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a setting that is neither 0 nor 1")
        window = values.get(Setting.INITIAL_WINDOW_SIZE, self.peer_initial_window)
        if window > LARGEST_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "an initial window over the limit")
        size = values.get(Setting.MAX_FRAME_SIZE, DEFAULT_MAX_FRAME)
        if not DEFAULT_MAX_FRAME <= size < 2**24:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame size out of range")
        if Setting.MAX_FRAME_SIZE in values:
            self.peer_max_frame = min(size, LARGEST_FRAME_SENT)
        if window != self.peer_initial_window:
            self._change_windows(window - self.peer_initial_window)
            self.peer_initial_window = window
        self.send(frame(Kind.SETTINGS, Flag.ACK, 0))

    def _change_windows(self, difference: int) -> None:
        self.charge(len(self.streams) / STREAMS_PER_TOKEN)
        for stream in self.streams.values():
            stream.widen(difference)

    def on_ping(self, payload: bytes) -> None:
        self.send(frame(Kind.PING, Flag.ACK, 0, payload))

    def on_window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self.send_window += increment
            if self.send_window > LARGEST_WINDOW:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit")
            self.pass_turn()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_was_open(stream_id)
        else:
            stream.widen(increment)
