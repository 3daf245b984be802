"""When reading from a WebSocket stops and goes on."""

from __future__ import annotations

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState

from interfaces.web.socket_protocol import MAX_WAITING, SMALL_BYTES, SocketProtocol


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
