"""Attacks on HTTP/2 with frames written by hand, as a program: one processor of its own, and no library that would refuse to send them.

    python -m tests.unit.gateway.attackers PORT SECONDS NAME...

prints what it has sent, a line of JSON for each attack. Window updates of the server are read and respected: a sender that ignores them
ends its connection only.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.unit.edge.gate import STREAM
from tests.unit.edge.http2 import CANCEL, PREFACE, Flag, Kind, frame, head, header, header_block

FRAME_BYTES, WINDOW_BYTES = 16_384, 65_535
EMPTY_MESSAGES = 13_000  # of 5 bytes each: as many as a window takes
TURN = 64  # pieces that one connection sends before the next one
ADDRESS = "127.0.0.2"  # another one than that of the callers beside


class Connection:
    """Sends what ``script`` yields, in pieces: bytes without flow control, or a number of bytes of data on a stream as (stream, bytes)."""

    def __init__(self, port: int, script: Callable[[], Iterator[bytes]]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), source_address=(ADDRESS, 0))
        self.socket.setblocking(False)
        self._script = script()
        self._unsent = memoryview(PREFACE + frame(Kind.SETTINGS, 0, 0))
        self._unread = bytearray()
        self.window = WINDOW_BYTES
        self.frames: Counter[int] = Counter()  # received, by kind
        self.sent = 0  # pieces

    def advance(self) -> bool:
        """Read all that arrived, and send as much as fits. False: the server has closed the connection."""
        try:
            if not self._read():
                return False
            for _ in range(TURN):
                if not (self._unsent or self._next()):
                    break
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _next(self) -> bool:
        if self.window < WINDOW_BYTES // 2:
            return False
        piece = next(self._script, b"")
        self.window -= _data_bytes(piece)
        self.sent += bool(piece)
        self._unsent = memoryview(piece)
        return bool(piece)

    def _read(self) -> bool:
        while True:
            try:
                data = self.socket.recv(65_536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._unread += data
            self._parse()

    def _parse(self) -> None:
        while len(self._unread) >= 9:
            length = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:9])
            payload = bytes(self._unread[9 : 9 + length])
            del self._unread[: 9 + length]
            self.frames[kind] += 1
            if kind == Kind.SETTINGS and not flags & Flag.ACK:
                self._unsent = memoryview(bytes(self._unsent) + frame(Kind.SETTINGS, Flag.ACK, 0))
            elif kind == Kind.WINDOW_UPDATE and stream == 0:
                self.window += int.from_bytes(payload, "big")


def _data_bytes(frames: bytes) -> int:
    """Payload of the DATA frames among them."""
    total, at = 0, 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + 3], "big")
        total += length if frames[at + 3] == Kind.DATA else 0
        at += 9 + length
    return total


# Scripts


def empty_messages() -> Iterator[bytes]:
    """A stream with as many empty messages as a window takes, and its reset; again."""
    messages = bytes(5 * EMPTY_MESSAGES)
    for stream in range(1, 2**31, 2):
        yield head(stream)
        for at in range(0, len(messages), FRAME_BYTES):
            yield frame(Kind.DATA, 0, stream, messages[at : at + FRAME_BYTES])
        yield frame(Kind.RST_STREAM, 0, stream, CANCEL)


def rapid_resets() -> Iterator[bytes]:
    for stream in range(1, 20_000, 2):
        yield head(stream) + frame(Kind.RST_STREAM, 0, stream, CANCEL)


def pings() -> Iterator[bytes]:
    while True:
        yield frame(Kind.PING, 0, 0, bytes(8)) * 100


def settings() -> Iterator[bytes]:
    while True:
        yield frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW_BYTES)) * 100


def continuations() -> Iterator[bytes]:
    """Headers that never end."""
    yield frame(Kind.HEADERS, 0, 1, header_block(STREAM))
    while True:
        yield frame(Kind.CONTINUATION, 0, 1, header("x-more", "x" * 100)) * 50


def empty_continuations() -> Iterator[bytes]:
    yield frame(Kind.HEADERS, 0, 1, header_block(STREAM))
    while True:
        yield frame(Kind.CONTINUATION, 0, 1) * 100


def empty_data() -> Iterator[bytes]:
    yield head(1)
    while True:
        yield frame(Kind.DATA, 0, 1) * 100


SCRIPTS: dict[str, tuple[int, Callable[[], Iterator[bytes]]]] = {  # connections, what each sends
    "empty_messages": (64, empty_messages),
    "rapid_resets": (1, rapid_resets),
    "many_rapid_resets": (8, rapid_resets),
    "pings": (4, pings),
    "settings": (4, settings),
    "continuations": (4, continuations),
    "empty_continuations": (4, empty_continuations),
    "empty_data": (4, empty_data),
}


def attack(name: str, port: int, seconds: float) -> dict[str, float]:
    """Connections that the server closes, or whose script ends, are replaced."""
    count, script = SCRIPTS[name]
    selector = selectors.DefaultSelector()
    totals: Counter[str] = Counter()

    def open_one() -> None:
        connection = Connection(port, script)
        selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        totals["connections"] += 1

    for _ in range(count):
        open_one()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for key, _ in selector.select(0.1):
            connection = key.data
            if not connection.advance():
                selector.unregister(connection.socket)
                connection.socket.close()
                totals["closed"] += 1
                totals["goaways"] += connection.frames[Kind.GOAWAY]
                totals["pieces"] += connection.sent
                open_one()
    for key in list(selector.get_map().values()):
        totals["pieces"] += key.data.sent
        totals["goaways"] += key.data.frames[Kind.GOAWAY]
        key.data.socket.close()
    return dict(totals)


if __name__ == "__main__":
    for name in sys.argv[3:]:
        sys.stdout.write(json.dumps(attack(name, int(sys.argv[1]), float(sys.argv[2]))) + "\n")
