"""WebSockets under uvicorn: reading goes on while few small messages wait."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

MAX_WAITING = 16
SMALL_BYTES = 4096
MAX_PONGS = 100  # that wait for a client that sends pings and reads nothing
MAX_FRAMES = 1024  # of one message: empty ones have no bytes that would count
PING_TIMEOUT_S = 90.0  # the pong to our ping comes after the audio before it, of which a client may be 60 s behind


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn stops reading after each message until it was taken, and starts again then. For a caller with ten pieces a second these two
    cost more than the piece; a message that is not small, or one of many, still stops it."""

    _pongs = 0

    def handle_ping(self) -> None:
        self._pongs = 0 if self.writable.is_set() else self._pongs + 1
        if self._pongs > MAX_PONGS:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAMES:
            self.transport.abort()
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return  # as the base class: the peer's close is still to be read
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            try:
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:  # the base class writes a trace
                self.conn.send_close(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
                return
        if not self.read_paused and (len(data) > SMALL_BYTES or self.queue.qsize() >= MAX_WAITING):
            self.read_paused = True
            self.transport.pause_reading()
