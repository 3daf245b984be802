"""What the two kinds of channel between models have in common: numbered calls, and their answers as they are delivered.

Used in one event loop, whose thread alone delivers answers. ``channel.py`` goes over BLS, ``direct_channel.py`` over a socket.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from bistream.contract.codec import Arrays
from bistream.contract.refusals import format_error, parse_error
from bistream.errors import BistreamError, CancelledError
from bistream.transport.envelope import Message

Answers = asyncio.Queue[Message]
GIVEN_UP = format_error(CancelledError("The caller has given this call up."))


class CallChannel(ABC):
    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def ask(self, arrays: Arrays) -> Arrays:
        """The only answer to a call: a view of what came with it. Raises the ``BistreamError`` that it was answered with.

        Where the model cannot be reached, or goes, that is ``EngineError``; the next call tries to reach it again.
        """
        number, answers = next(self._numbers), Answers()
        self._send(Message(number, arrays), answers)
        try:
            return _arrays(await answers.get())
        finally:
            self._forget(number)

    async def stream(self, arrays: Arrays, on_answer: Callable[[Arrays], Awaitable[None]]) -> None:
        """Pass on the answers to a call as they come, until the last. Raises as ``ask`` does.

        Cancelled, or when ``on_answer`` raises, it gives the call up, and the model learns of that.
        """
        number, answers = next(self._numbers), Answers()
        has_ended = False
        self._send(Message(number, arrays), answers)
        try:
            while not has_ended:
                message = await answers.get()
                has_ended = message.is_last
                if given := _arrays(message):
                    await on_answer(given)
        finally:
            self._forget(number)
            if not has_ended:
                self._send(Message(number, error=GIVEN_UP), None)

    @abstractmethod
    def _send(self, message: Message, answers: Answers | None) -> None:
        """Send a call (its answers go to ``answers``), or the notice that the call with this number is given up. Returns at once."""

    @abstractmethod
    def _forget(self, number: int) -> None:
        """Nobody waits for the answers to this call any more."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


def failed(number: int, error: BistreamError) -> Message:
    """The last answer to a call that has failed."""
    return Message(number, error=format_error(error))


def _arrays(message: Message) -> Arrays:
    if message.error is not None:
        raise parse_error(message.error)
    return message.arrays
