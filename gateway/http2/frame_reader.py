"""Bytes of a peer into frames, each checked for its form, and header blocks put together. What they mean is ``connection``'s business.

What a hostile peer can make it keep or do is bounded: frames by ``max_frame``, header blocks by ``MAX_HEADER_BYTES``, and calls and frames
that cost the peer little by tolls. Everything that breaks the protocol is a ``Violation``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hpack

from gateway.http2.fields import RawFields
from gateway.http2.frames import FRAME_HEAD_BYTES, LARGEST_WINDOW, ErrorCode, Flag, Kind, Violation, read_settings, unpadded
from gateway.http2.toll import Toll

MAX_HEADER_BYTES = 16_384  # of a client
MAX_TRUSTED_HEADER_BYTES = 1024 * 1024  # of a server: trailers hold its error messages, and all sessions share the connection
MAX_SETTINGS = 64  # of one frame; there are 6
CHEAP_FRAMES_BURST, CHEAP_FRAMES_PER_SECOND = 2000.0, 500.0  # calls, resets, pings, settings, windows, data of a few bytes
BLOCK_BYTES_PER_TOKEN, FIELDS_PER_TOKEN = 256, 8  # of a header block: decoding it costs more the longer it is


class FrameReader:
    """To be derived from: the ``on_`` methods are called in the order of the frames. is_trusted: the peer pays no toll."""

    def __init__(self, max_frame: int, is_trusted: bool) -> None:
        self.max_frame = max_frame
        self.is_trusted = is_trusted
        self.has_settings = False
        self.address_toll: Toll | None = None  # shared by the connections of one address
        self.max_header_bytes = MAX_TRUSTED_HEADER_BYTES if is_trusted else MAX_HEADER_BYTES
        self._decoder = hpack.Decoder(max_header_list_size=self.max_header_bytes)
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and bytes of a header block that goes on
        self._clock = asyncio.get_running_loop().time
        self._toll = Toll(CHEAP_FRAMES_BURST, CHEAP_FRAMES_PER_SECOND, self._clock)

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """payload: with its padding."""
        raise NotImplementedError

    def on_block(self, stream_id: int, fields: RawFields, ended: bool) -> None:
        """A whole header block."""
        raise NotImplementedError

    def on_reset(self, stream_id: int) -> None:
        raise NotImplementedError

    def on_settings(self, values: dict[int, int]) -> None:
        raise NotImplementedError

    def on_ping(self, payload: bytes) -> None:
        """A ping to be answered."""
        raise NotImplementedError

    def on_window_update(self, stream_id: int, increment: int) -> None:
        raise NotImplementedError

    def on_goaway(self, last_stream_id: int) -> None:
        """The peer takes no new streams, and has not taken those above ``last_stream_id``."""

    def is_over(self) -> bool:
        """Whether no further frame is to be read."""
        raise NotImplementedError

    def read_frames(self, data: bytes) -> bytes:
        """Handle the frames in ``data``; returns the rest that is no whole frame."""
        at, end = 0, len(data)
        while end - at >= FRAME_HEAD_BYTES and not self.is_over():
            head = int.from_bytes(data[at : at + FRAME_HEAD_BYTES], "big")
            size = head >> 48
            if size > self.max_frame:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame over the limit")
            begin = at + FRAME_HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._read_frame(head >> 40 & 0xFF, head >> 32 & 0xFF, head & LARGEST_WINDOW, data[begin:at])
        return data[at:] if at else data

    def _read_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if not self.has_settings and (kind != Kind.SETTINGS or flags & Flag.ACK):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        if kind < len(_READERS):
            _READERS[kind](self, flags, stream_id, payload)
        else:
            self.charge()

    def charge(self, tokens: float = 1.0) -> None:
        """Let the peer pay for a frame that costs it little. The address pays too; what it owes is waited for, see ``connection``."""
        if self.is_trusted:
            return
        if self._toll.take(tokens) < 0:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many calls or frames without content")
        if self.address_toll is not None:
            self.address_toll.take(tokens)

    def credit(self, tokens: float) -> None:
        """A frame that came with content, or went, allows the peer to send so many without."""
        self._toll.give(tokens)
        if self.address_toll is not None:
            self.address_toll.give(tokens)

    def _read_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.on_data(flags, stream_id, payload)

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream(stream_id)
        self._take_block(stream_id, flags, bytearray(unpadded(flags, payload, has_priority=True)))

    def _read_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        self.charge()
        _, first_flags, block = self._block
        block += payload
        self._take_block(stream_id, first_flags | flags & Flag.END_HEADERS, block)

    def _take_block(self, stream_id: int, flags: int, block: bytearray) -> None:
        if len(block) > self.max_header_bytes:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block over the limit")
        if not flags & Flag.END_HEADERS:
            self._block = (stream_id, flags, block)
            return
        self._block = None
        self.charge(1.0 + len(block) // BLOCK_BYTES_PER_TOKEN)
        try:
            fields = list(self._decoder.decode(bytes(block), raw=True))
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "a damaged header block") from error
        self.charge(len(fields) // FIELDS_PER_TOKEN)
        self.on_block(stream_id, fields, bool(flags & Flag.END_STREAM))

    def _read_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_stream(stream_id)
        _check_size(payload, 5)

    def _read_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_size(payload, 4)
        self.on_reset(stream_id)

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection(stream_id)
        self.charge()
        if flags & Flag.ACK:
            _check_size(payload, 0)
            return
        if len(payload) > 6 * MAX_SETTINGS:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many settings in a frame")
        self.on_settings(dict(read_settings(payload)))
        self.has_settings = True

    def _read_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a pushed stream")

    def _read_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_connection(stream_id)
        _check_size(payload, 8)
        if not flags & Flag.ACK:
            self.on_ping(payload)

    def _read_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_connection(stream_id)
        if len(payload) < 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY that is too short")
        self.on_goaway(int.from_bytes(payload[:4], "big") & LARGEST_WINDOW)

    def _read_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_size(payload, 4)
        increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
        if increment == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "an increment of 0")
        self.on_window_update(stream_id, increment)


_READERS: tuple[Callable[[FrameReader, int, int, bytes], None], ...] = (  # by kind
    FrameReader._read_data,
    FrameReader._read_headers,
    FrameReader._read_priority,
    FrameReader._read_reset,
    FrameReader._read_settings,
    FrameReader._read_push,
    FrameReader._read_ping,
    FrameReader._read_goaway,
    FrameReader._read_window_update,
    FrameReader._read_continuation,
)


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame of wrong size")


def _check_stream(stream_id: int) -> None:
    if stream_id == 0:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame of a stream without a stream")


def _check_connection(stream_id: int) -> None:
    if stream_id != 0:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame of the connection on a stream")
