"""The model's end of direct channels: listens on a Unix socket, takes calls and answers them (``direct_channel.py``).

One thread for each connection reads calls and hands them to the model, one at a time with the requests that come through the server; a
front model has one connection. The outbox sends the answers.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from bistream.contract.fields import ModelContract
from bistream.errors import BistreamError
from bistream.processes.control_files import LONGEST_STOP_S
from bistream.transport.call_sockets import BUFFER_BYTES, Frames, frame
from bistream.transport.channel_end import ChannelEnd, Handle, written

logger = logging.getLogger(__name__)

READ_BYTES = 2**18
SEND_TIMEOUT_S = LONGEST_STOP_S + 3.0  # a front model that takes nothing for as long is killed by the keeper; the others wait behind it
STOP_TIMEOUT_S = 5.0
RETRY_S = 0.1  # after a connection could not be accepted: a process without descriptors or threads may have some again


class DirectEnd(ChannelEnd):
    """The answers of one connection."""

    def __init__(self, connection: socket.socket, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        super().__init__(contract, handle, outbox)
        self._connection = connection

    @property
    def _can_send(self) -> bool:
        return True

    def _send(self) -> None:
        while True:
            with self._lock:
                answers = self._portion()
            if not answers:
                return
            try:
                self._connection.sendall(written(frame, answers))
            except Exception as error:  # none may end this loop: the next answers would wait for ever
                logger.warning("answers to a front model are lost: %s", error)
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # its reader ends the connection


class DirectEnds:
    """All connections of one model. Raises ``OSError`` when it cannot listen."""

    def __init__(self, path: Path, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        """handle: what the model does with a single request; called by one thread at a time for each connection."""
        self._path = path
        self._contract = contract
        self._handle = handle
        self._outbox = outbox
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = self._begin("listen", self._listen)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed.set()
        self._path.unlink(missing_ok=True)
        with self._lock:
            connections, self._connections = self._connections, set()
        for opened in (self._listener, *connections):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
        self._thread.join(STOP_TIMEOUT_S)
        self._listener.close()

    def _begin(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name=f"bistream-{name}-{self._contract.name}", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._take()
            except (OSError, RuntimeError) as error:
                if not self._closed.is_set():
                    logger.error("a front model could not be taken: %s", error)
                    self._closed.wait(RETRY_S)

    def _take(self) -> None:
        """The next front model. Raises ``OSError`` and ``RuntimeError`` for want of a descriptor or a thread, and when closed."""
        connection, _ = self._listener.accept()
        with self._lock:
            self._connections.add(connection)
        try:
            self._begin("calls", self._serve, connection)
        except RuntimeError:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        end, frames = DirectEnd(connection, self._contract, self._handle, self._outbox), Frames()
        try:
            _prepare(connection)
            while data := connection.recv(READ_BYTES):
                for call in frames.feed(data):
                    end.take(call)
        except (OSError, BistreamError) as error:
            logger.warning("the connection of a front model has ended: %s", error)
        finally:
            end.give_up()
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def _prepare(connection: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    seconds = struct.pack("ll", int(SEND_TIMEOUT_S), 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)  # of sending alone: reading waits for ever
