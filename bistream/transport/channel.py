"""A front model's channel to one model: calls of all its sessions, in the order in which they are made, in few requests over BLS.

A request over BLS blocks a thread here and one in the server until it is answered, and costs both processes and the server about 0.3 ms of
a processor. So calls do not get one each. The *poster* sends all calls that have come while it sent the last ones, and the *collector*
waits for answers in a request of its own, which the model answers with all that are there (``channel_end.py``). The busier the
channel, the more a request carries. Nothing waits to be joined: alone, a call leaves at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from bistream.contract.codec import Arrays, text_array
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import parse_error
from bistream.errors import BistreamError, EngineError
from bistream.transport.envelope import Message, pack, unpack

logger = logging.getLogger(__name__)

MAX_CALL_BYTES = 2**20  # of one request, unless a single call is larger: shared memory grows with it and never shrinks
CLOSE_TIMEOUT_S = 5.0

Answer = Arrays | BistreamError
Outcome = tuple["asyncio.Future[Arrays]", Answer]


class Asking(Protocol):
    def ask(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """One request; blocks until it is answered. Raises ``BistreamError``."""


class Channel:
    """For the sessions of one event loop."""

    def __init__(self, client: Asking, contract: ModelContract, channel_id: str) -> None:
        """channel_id: random, so that nobody else can collect the answers."""
        self._client = client
        self._contract = contract
        self._channel_id = text_array(channel_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        self._calls: SimpleQueue[tuple[Message, asyncio.Future[Arrays]] | None] = SimpleQueue()
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: dict[int, asyncio.Future[Arrays]] = {}  # calls that were sent, or are being sent
        self._is_closed = False
        self._threads = [
            threading.Thread(target=work, name=f"bistream-{name}-{contract.name}", daemon=True)
            for name, work in (("post", self._post), ("collect", self._collect))
        ]
        for thread in self._threads:
            thread.start()

    async def ask(self, arrays: Arrays) -> Arrays:
        """The answer to one call: a view of what came with it. Raises the ``BistreamError`` that it was answered with."""
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Arrays] = self._loop.create_future()
        self._calls.put((Message(next(self._numbers), arrays), answer))
        try:
            return await answer
        finally:
            del answer  # an error refers to this frame, and the future to the error

    def close(self) -> None:
        """End the threads; one whose request a dead model never answers is left behind. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._calls.put(None)
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                logger.error("%s does not answer its last request", self._contract.name)

    # The poster

    def _post(self) -> None:
        while calls := self._next_calls():
            with self._changed:
                self._waiting.update((message.number, answer) for message, answer in calls)
                self._changed.notify_all()
            numbers = [message.number for message, _ in calls]
            try:
                self._request({"calls": pack(message for message, _ in calls)})
            except Exception as error:
                self._fail(numbers, error)
            del calls

    def _next_calls(self) -> list[tuple[Message, asyncio.Future[Arrays]]]:
        """Waits for a call; all that have come. Empty: the channel is closed."""
        calls, size = [], 0
        try:
            call = self._calls.get()
            while call is not None:
                calls.append(call)
                size += call[0].size
                if size >= MAX_CALL_BYTES:
                    break
                call = self._calls.get_nowait()
            else:
                self._calls.put(None)  # for the next time
        except Empty:
            pass
        return calls

    # The collector

    def _collect(self) -> None:
        while self._is_owed():
            try:
                messages = unpack(self._request({})["answers"])
            except Exception as error:  # the model cannot be called: whatever was sent to it is lost
                with self._changed:
                    numbers = list(self._waiting)
                self._fail(numbers, error)
                continue
            self._answer([(message.number, _outcome(message)) for message in messages])

    def _is_owed(self) -> bool:
        """Wait until an answer is missing: an idle channel must hold no request, which would hold up the server's end. False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return bool(self._waiting)

    # Both

    def _request(self, arrays: Arrays) -> Arrays:
        return self._client.ask(self._contract, {"channel_id": self._channel_id, **arrays})

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        """Each call gets an error of its own, as each session takes it for its own."""
        if not isinstance(error, BistreamError):
            logger.error("a request to %s failed", self._contract.name, exc_info=error)
            error = EngineError("A model of the server failed; try again.")
        self._answer([(number, error.renewed(None)) for number in numbers])

    def _answer(self, answers: Sequence[tuple[int, Answer]]) -> None:
        with self._changed:
            outcomes = [(future, answer) for number, answer in answers if (future := self._waiting.pop(number, None)) is not None]
        assert self._loop is not None, "there was a call"
        try:
            self._loop.call_soon_threadsafe(_settle, outcomes)
        except RuntimeError:
            logger.error("%s answered after the sessions had been given up", self._contract.name)


def _outcome(message: Message) -> Answer:
    return message.arrays if message.error is None else parse_error(message.error)


def _settle(outcomes: Sequence[Outcome]) -> None:
    for future, answer in outcomes:
        if future.done():  # given up
            continue
        if isinstance(answer, BistreamError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
