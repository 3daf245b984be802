"""When reading from a WebSocket stops and goes on."""

from __future__ import annotations

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState

from interfaces.web.socket_protocol import MAX_PONGS, SocketProtocol


class Transport:
    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


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
