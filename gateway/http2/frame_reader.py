"""Bytes of a peer into frames, each checked for its form, and header blocks put together. What they mean is ``connection``'s business.

What a hostile peer can make it keep or do is bounded: frames by ``max_frame``, header blocks by ``MAX_HEADER_BYTES``, and calls and frames
that cost the peer little by a rate. Everything that breaks the protocol is a ``Violation``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import hpack

from gateway.http2.frames import FRAME_HEAD_BYTES, LARGEST_WINDOW, ErrorCode, Flag, Kind, Violation, read_settings, unpadded

MAX_HEADER_BYTES = 16_384
CHEAP_FRAMES_BURST, CHEAP_FRAMES_PER_SECOND = 2000.0, 500.0  # calls, resets, pings, settings, empty data


class FrameReader:
    """To be derived from: the ``on_`` methods are called in the order of the frames."""

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self.has_settings = False
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and bytes of a header block that goes on
        self._clock = asyncio.get_running_loop().time
        self._cheap_frames = CHEAP_FRAMES_BURST
        self._charged_at = self._clock()

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """payload: with its padding."""
        raise NotImplementedError

    def on_block(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        """A whole header block."""
        raise NotImplementedError

    def on_reset(self, stream_id: int) -> None:
        raise NotImplementedError

    def on_settings(self, values: Iterable[tuple[int, int]]) -> None:
        raise NotImplementedError

    def on_ping(self, payload: bytes) -> None:
        """A ping to be answered."""
        raise NotImplementedError

    def on_window_update(self, stream_id: int, increment: int) -> None:
        raise NotImplementedError

    def on_goaway(self) -> None:
        """The peer takes no new streams."""

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
        if not self.has_settings and kind != Kind.SETTINGS:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        if kind < len(_READERS):
            _READERS[kind](self, flags, stream_id, payload)
        else:
            self.charge()

    def charge(self) -> None:
        """Count a frame that costs the peer little."""
        now = self._clock()
        refilled = self._cheap_frames + CHEAP_FRAMES_PER_SECOND * (now - self._charged_at)
        self._cheap_frames, self._charged_at = min(CHEAP_FRAMES_BURST, refilled) - 1.0, now
        if self._cheap_frames < 0:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many calls or frames without content")

    def _read_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not payload and not flags & Flag.END_STREAM:
            self.charge()
        self.on_data(flags, stream_id, payload)

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "headers without a stream")
        self._take_block(stream_id, flags, bytearray(unpadded(flags, payload, has_priority=True)))

    def _read_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        if not payload:
            self.charge()
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

    def _read_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_size(payload, 5)

    def _read_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_size(payload, 4)
        self.on_reset(stream_id)

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        self.charge()
        if flags & Flag.ACK:
            _check_size(payload, 0)
            return
        self.on_settings(read_settings(payload))
        self.has_settings = True

    def _read_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a pushed stream")

    def _read_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        _check_size(payload, 8)
        if not flags & Flag.ACK:
            self.on_ping(payload)

    def _read_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge()
        self.on_goaway()

    def _read_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
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


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
