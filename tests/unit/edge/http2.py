"""A client of gRPC in bare HTTP/2 frames: it says from which loopback address it comes, and can do what no library does."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
from collections.abc import Callable, Iterable
from typing import Self

from tests.unit.edge.gate import STREAM

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CANCEL = struct.pack(">I", 8)


class Kind(enum.IntEnum):
    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


class Flag(enum.IntFlag):
    END_STREAM = ACK = 1
    END_HEADERS = 4


def frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(payload: bytes) -> bytes:
    """With the prefix of gRPC."""
    return b"\0" + struct.pack(">I", len(payload)) + payload


def header_block(path: str, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), ("te", "trailers")]
    fields += [("content-type", "application/grpc"), *extra]
    return b"".join(header(name, value) for name, value in fields)


def header(name: str, value: str) -> bytes:
    """HPACK, literal and without an index."""
    return b"\0" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    """Not compressed; the length as HPACK writes it with a prefix of 7 bits."""
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    head, rest = bytearray([127]), len(data) - 127
    while rest >= 128:
        head.append(rest % 128 + 128)
        rest //= 128
    return bytes([*head, rest]) + data


def head(stream: int, path: str = STREAM, flags: int = 0, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """HEADERS and as many CONTINUATION frames as they need."""
    block = header_block(path, extra)
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    kinds = [Kind.HEADERS] + [Kind.CONTINUATION] * (len(parts) - 1)
    ends = [0] * (len(parts) - 1) + [Flag.END_HEADERS]
    return b"".join(
        frame(kind, end | (flags if kind is Kind.HEADERS else 0), stream, part) for kind, end, part in zip(kinds, ends, parts, strict=True)
    )


class Connection:
    """``received``: per stream, what came in DATA frames. ``ended``: per stream, how. ``window``: bytes that the server still takes of all
    streams together; only ``wait_for_window`` respects it. reads: gives windows back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reads: bool = True) -> None:
        self.writer = writer
        self.received: dict[int, bytearray] = {}
        self.ended: dict[int, tuple[Kind, bytes]] = {}
        self.window = 65_535
        self._pongs = 0
        self._reads = reads
        self._reader = reader
        self._news = asyncio.Event()
        self._next = 1
        self.task = asyncio.create_task(self._receive())
        writer.write(PREFACE + frame(Kind.SETTINGS, 0, 0))

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1", reads: bool = True) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        return cls(reader, writer, reads)

    @property
    def is_open(self) -> bool:
        return not (self.task.done() or self.writer.is_closing())

    def begin(self, path: str = STREAM, flags: int = 0, extra: Iterable[tuple[str, str]] = ()) -> int:
        stream = self._next
        self._next += 2
        self.received[stream] = bytearray()
        self.writer.write(head(stream, path, flags, extra))
        return stream

    def call(self, path: str, extra: Iterable[tuple[str, str]] = ()) -> int:
        """A unary one."""
        stream = self.begin(path, extra=extra)
        self.say(stream, b"", Flag.END_STREAM)
        return stream

    def say(self, stream: int, payload: bytes, flags: int = 0) -> None:
        self.writer.write(frame(Kind.DATA, flags, stream, message(payload)))

    def reset(self, stream: int) -> None:
        self.writer.write(frame(Kind.RST_STREAM, 0, stream, CANCEL))

    async def wait_for_window(self, size: int) -> None:
        """And take it; returns too when the connection is over."""
        await self._wait_for(lambda: self.window >= size)
        self.window -= size

    async def ping(self) -> None:
        """Returns when the server has read everything before it."""
        pongs = self._pongs
        self.writer.write(frame(Kind.PING, 0, 0, bytes(8)))
        await self._wait_for(lambda: self._pongs > pongs)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition() and self.is_open:
            self._news.clear()
            await self._news.wait()

    async def answers(self, stream: int, size: int) -> bytes:
        """The first ``size`` bytes, or all that came before its end."""
        await self._wait_for(lambda: len(self.received[stream]) >= size or stream in self.ended)
        return bytes(self.received[stream][:size])

    async def end_of(self, stream: int) -> tuple[Kind, bytes] | None:
        """``None``: of its connection."""
        await self._wait_for(lambda: stream in self.ended)
        return self.ended.get(stream)

    async def _receive(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                start = await self._reader.readexactly(9)
                size, kind, flags, stream = int.from_bytes(start[:3]), Kind(start[3]), start[4], int.from_bytes(start[5:])
                self._handle(kind, flags, stream, await self._reader.readexactly(size))
        self.writer.close()
        self._news.set()

    def _handle(self, kind: Kind, flags: int, stream: int, payload: bytes) -> None:
        if kind is Kind.DATA:
            self.received.setdefault(stream, bytearray()).extend(payload)
            if self._reads and payload:
                step = struct.pack(">I", len(payload))
                self.writer.write(frame(Kind.WINDOW_UPDATE, 0, 0, step) + frame(Kind.WINDOW_UPDATE, 0, stream, step))
        elif kind in (Kind.SETTINGS, Kind.PING) and not flags & Flag.ACK:
            self.writer.write(frame(kind, Flag.ACK, 0, payload if kind is Kind.PING else b""))
        elif kind is Kind.PING:
            self._pongs += 1
        elif kind is Kind.WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(payload)
        if kind is Kind.RST_STREAM or (kind in (Kind.HEADERS, Kind.DATA) and flags & Flag.END_STREAM):
            self.ended[stream] = kind, payload
        self._news.set()

    async def close(self) -> None:
        self.writer.close()
        await self.task
