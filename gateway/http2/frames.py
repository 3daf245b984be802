"""HTTP/2 frames and gRPC's header fields as bytes (RFC 9113; gRPC over HTTP/2, "PROTOCOL-HTTP2")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from urllib.parse import quote, unquote_to_bytes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
DEFAULT_WINDOW = 65_535
DEFAULT_MAX_FRAME = 16_384
LARGEST_WINDOW = 2**31 - 1
MESSAGE_HEAD_BYTES = 5  # of a gRPC message: whether it is compressed, and its length


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Violation(Exception):
    """The peer broke the protocol: the connection is given up with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: Kind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return (len(payload) << 48 | kind << 40 | flags << 32 | stream_id).to_bytes(FRAME_HEAD_BYTES, "big") + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode) -> bytes:
    return frame(Kind.GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big"))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    if len(payload) % 6:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame of odd size")
    return struct.iter_unpack(">HI", payload)


def unpadded(flags: int, payload: bytes, has_priority: bool = False) -> bytes:
    """The payload of DATA or HEADERS without padding and priority."""
    begin, pad = 0, 0
    if flags & Flag.PADDED:
        if not payload:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its padding")
        begin, pad = 1, payload[0]
    if has_priority and flags & Flag.PRIORITY:
        begin += 5
    if begin + pad > len(payload):
        raise Violation(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[begin : len(payload) - pad]


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Fields as HPACK literals that no table keeps (RFC 7541, 6.2.2), so that there is no state to go wrong."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def _string(value: bytes) -> bytes:
    """RFC 7541, 5.2, without Huffman coding."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    head, size = bytearray((127,)), size - 127
    while size >= 128:
        head.append(size % 128 + 128)
        size //= 128
    head.append(size)
    return bytes(head) + value


def encoded_message(details: str) -> bytes:
    """``grpc-message``: percent-encoded UTF-8."""
    return quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="replace").encode("ascii")


def decoded_message(value: str) -> str:
    return unquote_to_bytes(value).decode("utf-8", "replace")
