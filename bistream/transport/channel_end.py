"""The model's end of channels (``channel.py``): listens on a Unix socket, takes calls one by one and answers them.

One thread for each connection reads calls and hands them to the model, one at a time with the requests that come through the server; a
front model has one connection. The outbox sends the answers: those that have come meanwhile leave together.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from bistream.contract.codec import CallInputs, Inputs, Values
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import format_error
from bistream.errors import BistreamError
from bistream.processes.control_files import LONGEST_STOP_S
from bistream.transport.call_sockets import BUFFER_BYTES, READ_BYTES, Frames, frame
from bistream.transport.envelope import Message
from bistream.transport.sender import Answerer, public_error

logger = logging.getLogger(__name__)

Handle = Callable[[Inputs, Answerer], None]
MAX_ANSWER_BYTES = 2**20  # of one envelope, unless a single answer is larger
SEND_TIMEOUT_S = LONGEST_STOP_S + 3.0  # a front model that takes nothing for as long is killed by the keeper; the others wait behind it
STOP_TIMEOUT_S = 5.0
RETRY_S = 0.1  # after a connection could not be accepted: a process without descriptors or threads may have some again


class ChannelEnds:
    """All connections of one model. Raises ``OSError`` when it cannot listen."""

    def __init__(self, path: Path, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        """handle: what the model does with a single request; called by one thread at a time for each connection. outbox: a thread that
        sends: it may block, and those that compute must not."""
        self._path = path
        self._contract = contract
        self._handle = handle
        self._outbox = outbox
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(self._listener.fileno(), 0o600)  # before it is bound: Linux gives the file this mode
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
        end, frames = ChannelEnd(connection, self._contract, self._handle, self._outbox), Frames()
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


class ChannelEnd:
    """The calls of one connection and their answers. Thread-safe."""

    def __init__(self, connection: socket.socket, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        self._connection = connection
        self._contract = contract
        self._handle = handle
        self._outbox = outbox
        self._lock = threading.Lock()
        self._open: dict[int, CallAnswer] = {}
        self._answers: list[Message] = []

    def take(self, message: Message) -> None:
        """Accept a new call, or the notice that a call was given up."""
        with self._lock:
            if message.error is not None:
                if (given_up := self._open.get(message.number)) is not None:
                    given_up.give_up()
                return
            answer = self._open[message.number] = CallAnswer(self, message.number)
        try:
            self._handle(CallInputs(message.values, self._contract), answer)
        except Exception as error:
            answer.finish(public_error(error))

    def give_up(self) -> None:
        """All calls: the other end has gone."""
        with self._lock:
            for answer in self._open.values():
                answer.give_up()

    def answer(self, message: Message) -> None:
        with self._lock:
            if message.is_last:
                self._open.pop(message.number, None)
            self._answers.append(message)
            is_due = len(self._answers) == 1
        if is_due:
            self._outbox.submit(self._send)

    def _send(self) -> None:
        """In the outbox, where more answers may have come meanwhile."""
        while answers := self._portion():
            try:
                self._connection.sendall(_framed(answers))
            except Exception as error:  # none may end this loop: the next answers would wait for ever
                logger.warning("answers to a front model are lost: %s", error)
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # its reader ends the connection

    def _portion(self) -> list[Message]:
        with self._lock:
            count = size = 0
            while count < len(self._answers) and (count == 0 or size + self._answers[count].size <= MAX_ANSWER_BYTES):
                size += self._answers[count].size
                count += 1
            taken, self._answers = self._answers[:count], self._answers[count:]
            return taken


def _framed(answers: list[Message]) -> bytes:
    """An answer that cannot be packed becomes an error of its call; the others of the connection go out as they are."""
    try:
        return frame(answers)
    except Exception:
        return frame([_packable(answer) for answer in answers])


def _packable(answer: Message) -> Message:
    try:
        frame([answer])
    except Exception as error:
        return Message(answer.number, error=format_error(public_error(error)))
    return answer


class CallAnswer:
    """Answers one call, as a ``ResponseSender`` answers a request."""

    def __init__(self, end: ChannelEnd, number: int) -> None:
        self._end = end
        self._number = number
        self._lock = threading.Lock()
        self._finished = False
        self._given_up = False

    def send(self, values: Values, is_last: bool = False) -> None:
        self._answer(Message(self._number, values, is_last=is_last))

    def finish(self, error: BistreamError | None = None) -> None:
        self._answer(Message(self._number, error=None if error is None else format_error(error)))

    def give_up(self) -> None:
        self._given_up = True

    def is_cancelled(self) -> bool:
        return self._given_up

    def _answer(self, message: Message) -> None:
        with self._lock:  # also while it is handed over: the last answer must not overtake another
            if not self._finished:
                self._finished = message.is_last
                self._end.answer(message)
