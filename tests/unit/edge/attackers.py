"""Attackers in a process of their own: ``python -m tests.unit.edge.attackers PORT SECONDS KIND ADDRESS...``, one after the other, each for
so many seconds from its address."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable

import grpc

from tests.unit.edge.gate import STREAM, UNARY
from tests.unit.edge.http2 import Connection, Kind, frame, head, header, header_block, message

EMPTY_MESSAGES = message(b"") * 3276  # 16,380 bytes, one frame
MORE_HEADERS = header("x-more", "x" * 100)


class Attack:
    def __init__(self, port: int, address: str, seconds: float) -> None:
        self.port = port
        self.address = address
        self.deadline = time.monotonic() + seconds
        self.seconds = seconds
        self.connections = 0

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.deadline

    async def again(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """One connection after the other, each used until it is closed."""
        while self.goes_on:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):  # closed before it was used up; the time is over
                connection = await Connection.open(self.port, self.address)
                self.connections += 1
                try:
                    async with asyncio.timeout_at(self.deadline):
                        while connection.is_open:
                            await use(connection)
                            await asyncio.sleep(0)
                finally:
                    connection.writer.transport.abort()
                    await connection.task

    async def empty_messages(self) -> None:
        """64 connections: a call, 13,104 messages without content, which are a window, a reset, and again."""

        async def use(connection: Connection) -> None:
            await connection.wait_for_window(4 * len(EMPTY_MESSAGES))
            stream = connection.begin()
            for _ in range(4):
                connection.writer.write(frame(Kind.DATA, 0, stream, EMPTY_MESSAGES))
            connection.reset(stream)
            await connection.writer.drain()

        await asyncio.gather(*(self.again(use) for _ in range(64)))

    async def resets(self) -> None:
        """Rapid reset, 16 connections."""

        async def use(connection: Connection) -> None:
            for _ in range(50):
                connection.reset(connection.begin())
            await connection.writer.drain()

        await asyncio.gather(*(self.again(use) for _ in range(16)))

    async def calls(self) -> None:
        """16 connections, on each 128 calls at once."""

        async def use(connection: Connection) -> None:
            streams = [connection.call(UNARY) for _ in range(128)]
            for stream in streams:
                await connection.end_of(stream)
            connection.ended.clear()
            connection.received.clear()

        await asyncio.gather(*(self.again(use) for _ in range(16)))

    async def idle(self) -> None:
        """512 connections with one call each, held; those that are closed are opened again."""

        async def use(connection: Connection) -> None:
            await connection.end_of(connection.call(UNARY))
            await asyncio.wait([connection.task])

        await asyncio.gather(*(self.again(use) for _ in range(512)))

    async def slow_heads(self) -> None:
        """256 connections, each with half a head of a call, sent byte by byte."""

        async def use(connection: Connection) -> None:
            for byte in head(1)[:100]:
                connection.writer.write(bytes([byte]))
                await asyncio.sleep(0.2)
            await asyncio.wait([connection.task])

        await asyncio.gather(*(self.again(use) for _ in range(256)))

    async def unread(self) -> None:
        """100 streams that ask for 4 MB of audio each and read none."""
        connection = await Connection.open(self.port, self.address, reads=False)
        self.connections += 1
        for _ in range(100):
            connection.say(connection.begin(), b"pour 100")
        await asyncio.wait([connection.task], timeout=self.seconds)
        await connection.close()

    async def hoard(self) -> None:
        """60 calls of 4 MB each, which have no answer: Envoy keeps them, to begin them again elsewhere."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            calls = [channel.stream_stream(STREAM)() for _ in range(60)]
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for call in calls * 4:
                    await call.write(b"pour 0".ljust(1_000_000))
                    self.connections = 1
            await asyncio.sleep(self.seconds)

    async def pings(self) -> None:
        await self.flood(lambda connection: frame(Kind.PING, 0, 0, bytes(8)))

    async def settings(self) -> None:
        await self.flood(lambda connection: frame(Kind.SETTINGS, 0, 0))

    async def empty_frames(self) -> None:
        await self.flood(lambda connection: frame(Kind.DATA, 0, connection.begin()))

    async def continuations(self, block: bytes = MORE_HEADERS) -> None:
        """Headers that never end, 4 connections."""

        async def use(connection: Connection) -> None:
            connection.writer.write(frame(Kind.HEADERS, 0, 1, header_block(STREAM)))
            while connection.is_open:
                connection.writer.write(frame(Kind.CONTINUATION, 0, 1, block) * 50)
                await connection.writer.drain()
                await asyncio.sleep(0)

        await asyncio.gather(*(self.again(use) for _ in range(4)))

    async def empty_continuations(self) -> None:
        await self.continuations(b"")

    async def flood(self, made: Callable[[Connection], bytes]) -> None:
        """A frame 500 times, and again, 16 connections."""

        async def use(connection: Connection) -> None:
            connection.writer.write(made(connection) * 500)
            await connection.writer.drain()

        await asyncio.gather(*(self.again(use) for _ in range(16)))


if __name__ == "__main__":
    port, seconds, *attacks = sys.argv[1:]
    for kind, address in zip(attacks[::2], attacks[1::2], strict=True):
        attack = Attack(int(port), address, float(seconds))
        asyncio.run(getattr(attack, kind)())
        assert attack.connections, f"{kind} has reached nobody"
