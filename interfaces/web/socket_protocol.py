"""WebSockets under uvicorn: reading goes on while few small messages wait."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_WAITING = 16
SMALL_BYTES = 4096


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn stops reading after each message until it was taken, and starts again then. For a caller with ten pieces a second these two
    cost more than the piece; a message that is not small, or one of many, still stops it."""

    def send_receive_event_to_app(self) -> None:
        size, was_paused = sum(map(len, self.frames)), self.read_paused
        self.read_paused = True  # else the base class stops reading
        super().send_receive_event_to_app()
        self.read_paused = was_paused
        if not was_paused and (size > SMALL_BYTES or self.queue.qsize() >= MAX_WAITING):
            self.read_paused = True
            self.transport.pause_reading()
