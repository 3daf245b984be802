"""The model's end of channels: takes their calls one by one, and gathers the answers that can leave together.

Those over BLS are here (``channel.py`` is the other end and says why); those over sockets in ``direct_end.py``. Used by the models that
front models call (``model.py:SiblingModel``).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from bistream.contract.codec import ArrayInputs, Inputs
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, BusyError, InvalidInputError
from bistream.transport.envelope import Message, pack, unpack
from bistream.transport.sender import Answerer, Arrays, ResponseSender, public_error

MAX_ANSWER_BYTES = 2**20  # of one response, unless a single answer is larger: shared memory grows with it and never shrinks
MAX_CHANNELS = 64  # a front model has one; more are somebody else's

T = TypeVar("T")
Handle = Callable[[Inputs, Answerer], None]


class ChannelEnd(ABC):
    """Answers of one channel, which are sent with all others that have come meanwhile. Thread-safe."""

    def __init__(self, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        """handle: what the model does with a single request. outbox: a thread that sends: it may block, and those that compute must not."""
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
            self._handle(ArrayInputs(message.arrays, self._contract), answer)
        except Exception as error:
            answer.fail(public_error(error))

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
            is_due = self._can_send and len(self._answers) == 1
        if is_due:
            self._outbox.submit(self._send)

    @property
    @abstractmethod
    def _can_send(self) -> bool:
        """With the lock held: whether the other end waits."""

    @abstractmethod
    def _send(self) -> None:
        """In the outbox, where more answers may have come meanwhile: send what ``_portion`` gives."""

    def _portion(self) -> list[Message]:
        """A portion; with the lock held."""
        count = size = 0
        while count < len(self._answers) and (count == 0 or size + self._answers[count].size <= MAX_ANSWER_BYTES):
            size += self._answers[count].size
            count += 1
        taken, self._answers = self._answers[:count], self._answers[count:]
        return taken


def written(write: Callable[[list[Message]], T], answers: list[Message]) -> T:
    """An answer that cannot be packed becomes an error of its call; the others of the channel go out as they are."""
    try:
        return write(answers)
    except Exception:
        return write([_packable(answer) for answer in answers])


def _packable(answer: Message) -> Message:
    try:
        pack([answer])
    except Exception as error:
        return Message(answer.number, error=format_error(public_error(error)))
    return answer


class BlsEnd(ChannelEnd):
    """Over BLS: answers wait for a request, or one request waits for them."""

    def __init__(self, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        super().__init__(contract, handle, outbox)
        self._collector: ResponseSender | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing would be lost without it."""
        with self._lock:
            return not self._open and not self._answers and self._collector is None

    def collect(self, sender: ResponseSender) -> None:
        with self._lock:
            if self._collector is not None:
                raise InvalidInputError("A request for the answers of this channel is already waiting; wait for its answer.")
            self._collector = sender
            is_due = bool(self._answers)
        if is_due:
            self._outbox.submit(self._send)

    @property
    def _can_send(self) -> bool:
        return self._collector is not None

    def _send(self) -> None:
        with self._lock:
            if self._collector is None or not self._answers:
                return
            sender, answers, self._collector = self._collector, self._portion(), None
        sender.send_last({"answers": written(pack, answers)})


class BlsEnds:
    """All channels of one model over BLS; used by the thread of ``execute`` alone."""

    def __init__(self, contract: ModelContract, handle: Handle, outbox: Executor) -> None:
        """handle: what the model does with a single request. outbox: a thread that sends responses."""
        self._contract = contract
        self._handle = handle
        self._outbox = outbox
        self._ends: dict[str, BlsEnd] = {}

    def take(self, channel_id: str, inputs: Inputs, sender: ResponseSender) -> None:
        """A request with calls, answered at once; or without, answered once there are answers to calls."""
        end = self._end(channel_id)
        calls = inputs.value("calls")
        if calls is None:
            end.collect(sender)
            return
        for call in unpack(calls):
            end.take(call)
        sender.finish()

    def _end(self, channel_id: str) -> BlsEnd:
        if channel_id not in self._ends:
            self._ends = {one: end for one, end in self._ends.items() if not end.is_idle}
            if len(self._ends) >= MAX_CHANNELS:
                raise BusyError(f"{MAX_CHANNELS} channels are open already; try again later.")
            self._ends[channel_id] = BlsEnd(self._contract, self._handle, self._outbox)
        return self._ends[channel_id]


class CallAnswer:
    """Answers one call of a channel, as a ``ResponseSender`` answers a request."""

    def __init__(self, end: ChannelEnd, number: int) -> None:
        self._end = end
        self._number = number
        self._lock = threading.Lock()
        self._finished = False
        self._given_up = False

    def send(self, arrays: Arrays) -> None:
        self._answer(Message(self._number, dict(arrays), is_last=False))

    def send_last(self, arrays: Arrays) -> None:
        self._answer(Message(self._number, dict(arrays)))

    def finish(self) -> None:
        self._answer(Message(self._number))

    def fail(self, error: BistreamError) -> None:
        self._answer(Message(self._number, error=format_error(error)))

    def give_up(self) -> None:
        self._given_up = True

    def is_cancelled(self) -> bool:
        return self._given_up

    def _answer(self, message: Message) -> None:
        with self._lock:  # also while it is handed over: the last answer must not overtake another
            if not self._finished:
                self._finished = message.is_last
                self._end.answer(message)
