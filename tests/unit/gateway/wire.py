"""HTTP/2 connections of the gate without sockets: a transport that keeps what is written, and a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.budget import Budget
from gateway.http2.frames import PREFACE, Flag, Kind, frame, header_block, settings_frame
from gateway.http2.server import Http2Server, ServerCall, ServerSettings
from gateway.http2.server_connection import ServerConnection

PATH = "/service/Echo"


class MovedLoop(asyncio.SelectorEventLoop):
    """Its clock, ``moved_s``, stands still until the test moves it: what a bound lets through does not depend on the machine's speed."""

    moved_s = 0.0

    def time(self) -> float:
        return self.moved_s


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[-4:], "big")


@dataclass
class Transport:
    """What an asyncio transport does for a connection. tls: what ALPN has chosen."""

    is_aborted: bool = False
    is_reading: bool = True
    written: bytearray = field(default_factory=bytearray)
    tls: Any = None
    connection: Any = None

    def get_extra_info(self, name: str) -> Any:
        return self.tls if name == "ssl_object" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert not self.is_aborted
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Wire:
    """A connection and its peer's end. ``send`` is what the peer sends; ``frames`` what came back since the last look."""

    def __init__(self, connection: Any, transport: Transport | None = None) -> None:
        self.connection = connection
        self.transport = transport or Transport()
        self.transport.connection = connection
        connection.connection_made(self.transport)

    def send(self, *parts: bytes) -> None:
        data = b"".join(parts)
        for begin in range(0, len(data), 65_536):
            if not self.transport.is_aborted:
                self.connection.data_received(data[begin : begin + 65_536])

    def frames(self) -> list[Frame]:
        """What is written is whole frames at every time."""
        data, at, found = bytes(self.transport.written), 0, []
        self.transport.written.clear()
        if data.startswith(PREFACE):
            at = len(PREFACE)
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            found.append(Frame(data[at + 3], data[at + 4], stream, data[at + 9 : at + 9 + size]))
            assert len(found[-1].payload) == size
            at += 9 + size
        return found

    def of(self, *kinds: int) -> list[Frame]:
        return [found for found in self.frames() if found.kind in kinds]

    @property
    def end(self) -> int | None:
        """The code of the GOAWAY with which the connection was closed; ``None`` while it is open."""
        codes = [found.code for found in self.of(Kind.GOAWAY)]
        return codes[-1] if self.transport.is_aborted and codes else None


async def echo(call: ServerCall) -> None:
    """Every message comes back, ``none`` excepted, and ``size N`` as N bytes."""
    while (message := await call.read()) is not None:
        if message.startswith(b"size "):
            await call.write(bytes(int(message[5:])))
        elif not message.startswith(b"none"):
            await call.write(message)


async def never_read(call: ServerCall) -> None:
    await asyncio.get_running_loop().create_future()


SETTINGS = ServerSettings(8, 12, 20, 50_000, "BUSY: Too many.", frozenset({b"x-api-key"}))


class Server:
    def __init__(
        self,
        handler: Callable[[ServerCall], Awaitable[None]] = echo,
        settings: ServerSettings = SETTINGS,
        input_bytes: int = 0,
    ) -> None:
        self.budget = Budget(input_bytes)
        self.server = Http2Server(handler, settings, self.budget)
        self.ended = 0

    def open(self, peer: str = "10.0.0.1", greeting: bytes = PREFACE + settings_frame({}), tls: Any = None) -> Wire:
        connection = self.server.connection(peer, self._on_end)
        assert isinstance(connection, ServerConnection)
        wire = Wire(connection, Transport(tls=tls))
        wire.send(greeting)
        return wire

    def _on_end(self) -> None:
        self.ended += 1

    def check_empty(self) -> None:
        """Nothing is left of any connection."""
        shared = self.server._shared
        assert (self.server.connections, shared.calls, self.budget.used) == (0, 0, 0)
        assert all(address.calls == address.budget.used == 0 for address in shared.addresses.values())


def run(test: Callable[[], Awaitable[None]]) -> None:
    """One test in a loop of its own; nothing may hang, and no task may be left."""
    loop = MovedLoop()

    async def bounded() -> None:
        async with asyncio.timeout(100_000):  # of the moved clock
            await test()
        await settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        assert not [task for task in left if "pytest" not in repr(task)], left

    failures: list[Any] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    try:
        loop.run_until_complete(bounded())
    finally:
        loop.close()
    assert not failures, failures


async def settle(turns: int = 12) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def wait(seconds: float, step: float = 1.0) -> None:
    """Move the clock, in steps so small that no timer is late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    for _ in range(round(seconds / step)):
        loop.moved_s += step
        await settle(3)


def message(data: bytes = b"hello") -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), (b"content-type", b"application/grpc")]


def headers(
    stream: int, *more: tuple[bytes, bytes], fields: list[tuple[bytes, bytes]] | None = None, flags: int = Flag.END_HEADERS
) -> bytes:
    return frame(Kind.HEADERS, flags, stream, header_block([*(FIELDS if fields is None else fields), *more]))


def data(stream: int, payload: bytes = b"", ended: bool = False) -> bytes:
    """In frames of the size that everybody takes."""
    if len(payload) <= 16_384:
        return frame(Kind.DATA, Flag.END_STREAM if ended else 0, stream, payload)
    return frame(Kind.DATA, 0, stream, payload[:16_384]) + data(stream, payload[16_384:], ended)


def call(stream: int, *messages: bytes) -> bytes:
    """A whole call."""
    return headers(stream) + data(stream, b"".join(map(message, messages)), ended=True)


async def lost(wire: Wire) -> None:
    """The peer is gone."""
    if not wire.transport.is_aborted:
        wire.transport.close()
    await settle()
