"""The kinds of Triton model: decoupled (answers through a sender, at any time) and batched (``execute`` computes several requests together
and returns one response for each).

A ``model.py`` derives ``TritonPythonModel`` from one of them and defines how to open its stage, handle a request and close.
The base classes ensure what must be the same everywhere: ``execute`` never raises (Triton would send the client a stack trace
with paths), every request is answered, and a model that cannot work refuses to load.
"""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs, Values
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import accepts_no_sessions
from bistream.errors import BistreamError
from bistream.metrics.recorder import Recorder
from bistream.processes.start_phases import interpreter_is_ready, phase
from bistream.transport.call_sockets import socket_path
from bistream.transport.channel_end import CallAnswer, ChannelEnds
from bistream.transport.sender import Answerer, ResponseSender, data_response, error_response, public_error
from bistream.triton.free_memory import release_free_memory_now_and_then
from bistream.triton.inputs import TritonInputs
from bistream.triton.startup import (
    end_when_useless,
    is_decoupled,
    prepare_process,
    refusing_to_load,
    runtime_config,
    settle_memory,
)
from bistream.triton.status_writer import StatusWriter

LOAD_SILENCE_S = 600.0  # libraries that are imported or compile kernels may hold the interpreter's lock


class TritonModel(ABC):
    """Life cycle of a model: ``initialize`` -> ``open``, ``execute``, ``finalize`` -> ``close``."""

    backend: ClassVar[Any]  # triton_python_backend_utils
    contract: ClassVar[ModelContract]
    config: RuntimeConfig
    decoupled: bool
    recorder: Recorder  # takes what the model counts
    status: StatusWriter  # tells the keeper

    def initialize(self, args: dict[str, str]) -> None:
        self._opened = False
        self._closing = threading.Event()
        with refusing_to_load(self.backend):
            self.config = runtime_config(args["model_config"])
            self.decoupled = is_decoupled(args["model_config"])
            prepare_process(self.config, self.contract.name)
            interpreter_is_ready()
            self.recorder = Recorder()
            self.status = StatusWriter.of_this_process(self.contract.name)
            with self.status.busy(LOAD_SILENCE_S, "loading"), phase("the whole model"):
                self.open(self.config)
                self._opened = True
                settle_memory()
            end_when_useless(self.healthy)
            self.status.record(self.recorder, self.contract.name)
            self._releasing_stopped = release_free_memory_now_and_then()

    def finalize(self) -> None:
        self._closing.set()
        if self._opened:
            self._releasing_stopped.set()
            self.close()
            self.status.stop()
        gc.collect()  # a response sender held only by a reference cycle would be freed after the stub's shared memory, and crash

    @abstractmethod
    def open(self, config: RuntimeConfig) -> None:
        """Import heavy libraries and load the networks. Raises ``BistreamError`` when the model cannot work."""

    def healthy(self) -> bool:
        """False once this process can no longer work; it is then ended, and the supervisor starts a new server."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Drain, then free everything."""

    @abstractmethod
    def execute(self, requests: Sequence[Any]) -> list[Any] | None: ...

    def refuse_when_closing(self) -> None:
        if self._closing.is_set():
            raise accepts_no_sessions()


class DecoupledModel(TritonModel):
    """``execute`` hands over every request and returns; the stage's threads answer."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        for request in requests:
            sender = ResponseSender(self.backend, request.get_response_sender(), self.contract)
            try:
                self.take(TritonInputs(request, self.contract), sender)
            except Exception as error:
                sender.finish(public_error(error))
        return None

    def take(self, inputs: TritonInputs, sender: ResponseSender) -> None:
        self.refuse_when_closing()
        self.handle(inputs, sender)

    @abstractmethod
    def handle(self, inputs: TritonInputs, sender: ResponseSender) -> None:
        """Validate, enqueue, return. An exception becomes the request's answer; otherwise ``sender`` must be finished later."""


class BatchedModel(TritonModel):
    """One response per request, computed inside ``execute`` for all requests that the server hands over together."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        items = [self._item(request) for request in requests]
        answers = iter(self._answers([item for item in items if not isinstance(item, BistreamError)]))
        return [self._response(item if isinstance(item, BistreamError) else next(answers)) for item in items]

    def _item(self, request: Any) -> Any:
        try:
            self.refuse_when_closing()
            return self.read(TritonInputs(request, self.contract))
        except Exception as error:
            return public_error(error)

    def _answers(self, items: Sequence[Any]) -> Sequence[Values | BistreamError]:
        try:
            return self.answers(items) if items else []
        except Exception as error:
            if len(items) == 1:
                return [public_error(error)]
            return [answer for item in items for answer in self._answers([item])]  # one request must not fail the others

    def _response(self, answer: Values | BistreamError) -> Any:
        if isinstance(answer, BistreamError):
            return error_response(self.backend, answer)
        return data_response(self.backend, self.contract, answer)

    @abstractmethod
    def read(self, inputs: Inputs) -> Any:
        """What ``answers`` needs of one request. An exception becomes its answer."""

    @abstractmethod
    def answers(self, items: Sequence[Any]) -> Sequence[Values]:
        """The outputs by name for each item. After an exception each is tried alone."""


class SiblingModel(DecoupledModel):
    """A model that others call, each for many sessions through one channel. A request of its own is answered as well.

    outbox: the thread that sends responses: sending blocks on the server, and the threads that compute must not block.
    """

    outbox: ThreadPoolExecutor

    def initialize(self, args: dict[str, str]) -> None:
        self.outbox = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{self.contract.name}-send")
        self.handling = threading.RLock()  # requests come from the thread of ``execute``, calls from those of the sockets
        self._ends: ChannelEnds | None = None
        super().initialize(args)
        with refusing_to_load(self.backend):
            self._ends = ChannelEnds(socket_path(self.contract.name), self.contract, self.take, self.outbox)

    def finalize(self) -> None:
        super().finalize()
        if self._ends is not None:
            self._ends.close()

    def take(self, inputs: Inputs, sender: Answerer) -> None:
        with self.handling:
            self.refuse_when_closing()
            self.handle(inputs, sender)

    def post_answer(self, sender: Answerer, send: Callable[[], None]) -> None:
        """Answer with ``send``, which calls ``sender``; with an error if it raises, and so nothing raises here or is left unanswered.

        Does not block: the answer to a call is only put beside others of its channel.
        """

        def answer() -> None:
            try:
                send()
            except Exception as error:
                sender.finish(public_error(error))

        if isinstance(sender, CallAnswer):
            answer()
        else:
            self.outbox.submit(answer)

    @abstractmethod
    def handle(self, inputs: Inputs, sender: Answerer) -> None:
        """One request or one call of a channel; never two at a time."""
