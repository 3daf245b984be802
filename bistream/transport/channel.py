"""A channel to one model over BLS: calls of all its sessions, in the order in which they are made, in few requests.

A request over BLS blocks a thread here and one in the server until it is answered, and costs both processes and the server about 0.3 ms of
a processor. So calls do not get one each. The *poster* sends all calls that have come while it sent the last ones, and the *collector*
waits for answers in a request of its own, which the model answers with all that are there (``channel_end.py``). The busier the
channel, the more a request carries. No call is delayed to fill a request: alone, it leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from bistream.contract.codec import Arrays, text_array
from bistream.contract.fields import ModelContract
from bistream.errors import BistreamError, EngineError
from bistream.transport.bls_client import BlsClient
from bistream.transport.call_channel import Answers, CallChannel, failed
from bistream.transport.call_sockets import socket_path
from bistream.transport.direct_channel import DirectChannel
from bistream.transport.envelope import Message, pack, unpack

logger = logging.getLogger(__name__)

MAX_CALL_BYTES = 2**20  # of one request, unless a single call is larger: shared memory grows with it and never shrinks
CLOSE_TIMEOUT_S = 5.0


class Asking(Protocol):
    def ask(self, contract: ModelContract, arrays: Arrays) -> Arrays:
        """One request; blocks until it is answered. Raises ``BistreamError``."""


class Channel(CallChannel):
    """For the sessions of one event loop."""

    def __init__(self, client: Asking, contract: ModelContract, channel_id: str) -> None:
        """channel_id: random, so that nobody else can collect the answers."""
        super().__init__()
        self._client = client
        self._contract = contract
        self._channel_id = text_array(channel_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: SimpleQueue[tuple[Message, Answers | None] | None] = SimpleQueue()
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: dict[int, Answers] = {}  # calls that were sent, or are being sent, until their last answer
        self._is_closed = False
        self._threads = [
            threading.Thread(target=work, name=f"bistream-{name}-{contract.name}", daemon=True)
            for name, work in (("post", self._post), ("collect", self._collect))
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, message: Message, answers: Answers | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls.put((message, answers))

    def _forget(self, number: int) -> None:
        """The answer still arrives, and must be collected."""

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
                self._waiting.update((message.number, answers) for message, answers in calls if answers is not None)
                self._changed.notify_all()
            numbers = [message.number for message, _ in calls]
            try:
                self._request({"calls": pack(message for message, _ in calls)})
            except Exception as error:
                self._fail(numbers, error)
            del calls

    def _next_calls(self) -> list[tuple[Message, Answers | None]]:
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
            self._answer(messages)

    def _is_owed(self) -> bool:
        """Wait until an answer is missing: an idle channel must hold no request, which would hold up the server's end. False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return bool(self._waiting)

    # Both

    def _request(self, arrays: Arrays) -> Arrays:
        return self._client.ask(self._contract, {"channel_id": self._channel_id, **arrays})

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        if not isinstance(error, BistreamError):
            logger.error("a request to %s failed", self._contract.name, exc_info=error)
            error = EngineError("A model of the server failed; try again.")
        self._answer([failed(number, error) for number in numbers])

    def _answer(self, messages: Sequence[Message]) -> None:
        with self._changed:
            found = [(answers, message) for message in messages if (answers := self._waiting.get(message.number)) is not None]
            for message in messages:
                if message.is_last:
                    self._waiting.pop(message.number, None)
        assert self._loop is not None, "there was a call"
        try:
            self._loop.call_soon_threadsafe(_deliver, found)
        except RuntimeError:
            logger.error("%s answered after the sessions had been given up", self._contract.name)


def _deliver(found: Sequence[tuple[Answers, Message]]) -> None:
    for answers, message in found:
        answers.put_nowait(message)


def open_channel(client: BlsClient, contract: ModelContract) -> CallChannel:
    """Over a socket where there is a keeper, else over BLS."""
    path = socket_path(contract.name)
    return Channel(client, contract, secrets.token_hex(16)) if path is None else DirectChannel(path, contract.name)
