"""A channel to one model over a Unix socket (``call_sockets.py``): the calls of all its sessions, in the order in which they are made.

Everything happens in one event loop: a call leaves when it is made, its answer is delivered where it is read, and no thread is woken in
between. What the kernel does not take at once is sent as soon as it does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from bistream.contract.codec import Values
from bistream.contract.refusals import format_error, parse_error
from bistream.errors import BistreamError, CancelledError, EngineError
from bistream.transport.call_sockets import BUFFER_BYTES, READ_BYTES, Frames, frame
from bistream.transport.envelope import Message

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0  # a model that listens accepts at once
_GIVEN_UP = format_error(CancelledError("The caller has given this call up."))


class CallChannel:
    """Used by the loop's thread alone, but for ``close``, which may come when the loop has ended."""

    def __init__(self, path: Path, model: str) -> None:
        """path: where the model listens, from the first call on. model: its name, for the log."""
        self._path = path
        self._model = model
        self._numbers = itertools.count()
        self._waiting: dict[int, Callable[[Message], None]] = {}
        self._connection: _Connection | None = None

    async def ask(self, values: Values) -> Values:
        """The only answer to a call; its arrays are views of what came. Raises the ``BistreamError`` that it was answered with.

        Where the model cannot be reached, or goes, that is ``EngineError``; the next call tries to reach it again.
        """
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        number = self._call(values, lambda message: None if answer.done() else answer.set_result(message))
        try:
            return _values(await answer)
        finally:
            self._waiting.pop(number, None)

    async def stream(self, values: Values, on_answer: Callable[[Values], Awaitable[None]]) -> None:
        """Pass on the answers to a call as they come, until the last. Raises as ``ask`` does.

        Cancelled, or when ``on_answer`` raises, it gives the call up, and the model learns of that.
        """
        answers = asyncio.Queue[Message]()
        number = self._call(values, answers.put_nowait)
        has_ended = False
        try:
            while not has_ended:
                message = await answers.get()
                has_ended = message.is_last
                if given := _values(message):
                    await on_answer(given)
        finally:
            self._waiting.pop(number, None)
            if not has_ended and self._connection is not None:  # the end of a connection ends its calls
                self._connection.send(frame([Message(number, error=_GIVEN_UP)]))

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, values: Values, on_answer: Callable[[Message], None]) -> int:
        number = next(self._numbers)
        data = frame([Message(number, values)])
        try:
            if self._connection is None:
                self._connection = _Connection(self._path, self._answer, self._lost)
        except OSError as error:
            raise self._failure(error) from None
        self._waiting[number] = on_answer
        self._connection.send(data)
        return number

    def _answer(self, messages: list[Message]) -> None:
        for message in messages:
            if (on_answer := self._waiting.get(message.number)) is not None:  # else it was given up
                on_answer(message)

    def _lost(self, connection: _Connection, error: Exception) -> None:
        if connection is not self._connection:  # a broken connection can report more than once; later calls use a new one
            return
        self.close()
        if not self._waiting:  # at the end of a server; where the model has died the keeper says so, and the next call finds out
            logger.info("%s: %s", self._model, error)
            return
        failure = format_error(self._failure(error))
        for number, on_answer in self._waiting.items():
            on_answer(Message(number, error=failure))

    def _failure(self, error: Exception) -> BistreamError:
        logger.error("%s cannot be called: %s", self._model, error)
        return EngineError("A model of the server failed; try again.")


def _values(message: Message) -> Values:
    if message.error is not None:
        raise parse_error(message.error)
    return message.values


class _Connection:
    """Raises ``OSError`` when nobody listens. Its callbacks come from the running loop."""

    def __init__(self, path: Path, on_messages: Callable[[list[Message]], None], on_lost: Callable[[_Connection, Exception], None]) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.settimeout(CONNECT_TIMEOUT_S)
            self._socket.connect(str(path))
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._read)

    def send(self, data: bytes) -> None:
        """In order; never blocks."""
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[0])
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                    break
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._loop.call_soon(self._on_lost, self, error)  # not within the call that is being made
            self._unsent.clear()
            return
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("it has closed its connection")
            messages = self._frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, BistreamError) as error:
            self._on_lost(self, error)
            return
        self._on_messages(messages)
