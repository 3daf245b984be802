"""When reading from a WebSocket stops and goes on."""

from __future__ import annotations

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from interfaces.web.socket_protocol import MAX_FRAMES, MAX_PONGS, MAX_WAITING, SMALL_BYTES, SocketProtocol


class Transport:
    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def test_reading_stops_for_many_messages_and_for_a_large_one_until_they_are_taken() -> None:
    async def receive(protocol: SocketProtocol, transport: Transport, sizes: list[int]) -> int:
        """How many were taken in before reading stopped; all are given to the application."""
        count = 0
        while transport.is_reading:
            protocol.frames = [b"x" * sizes[count % len(sizes)]]
            protocol.send_receive_event_to_app()
            count += 1
        for left in range(count - 1, -1, -1):
            assert not transport.is_reading
            assert "bytes" in await protocol.receive()
            assert protocol.queue.qsize() == left
        assert transport.is_reading
        return count

    async def live() -> None:
        protocol, transport = SocketProtocol(Config(None), ServerState(), {}), Transport()  # type: ignore[arg-type]
        protocol.transport = transport  # type: ignore[assignment]
        for _ in range(2):
            assert await receive(protocol, transport, [SMALL_BYTES]) == MAX_WAITING
            assert await receive(protocol, transport, [1, 1, SMALL_BYTES + 1]) == 3

    asyncio.run(live())


class Open:
    """The state of a WebSocket that only has answers to send."""

    def data_to_send(self) -> list[bytes]:
        return [b"pong"]


class Written(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_aborted
        self.written += 1

    def abort(self) -> None:
        self.is_aborted = True


def made() -> tuple[SocketProtocol, Written]:
    protocol, transport = SocketProtocol(Config(None), ServerState(), {}), Written()  # type: ignore[arg-type]
    protocol.transport, protocol.conn = transport, Open()  # type: ignore[assignment]
    return protocol, transport


def test_who_sends_pings_and_reads_nothing_is_left() -> None:
    async def live() -> None:
        protocol, transport = made()
        for _ in range(10 * MAX_PONGS):
            protocol.handle_ping()
        assert transport.written == 10 * MAX_PONGS, "an honest client may send as many as it likes"
        protocol.pause_writing()
        for _ in range(MAX_PONGS):
            protocol.handle_ping()
        assert not transport.is_aborted
        protocol.handle_ping()
        assert transport.is_aborted and transport.written == 11 * MAX_PONGS

    asyncio.run(live())


def test_a_message_of_very_many_frames_is_not_collected() -> None:
    async def live() -> None:
        protocol, transport = made()
        protocol.frames = [b""]
        while not transport.is_aborted:
            protocol.handle_cont(Frame(Opcode.CONT, b"", fin=False))
        assert len(protocol.frames) == MAX_FRAMES

    asyncio.run(live())
