"""The two kinds of Triton model: decoupled (answers through a sender, at any time) and unary (``execute`` returns one response).

A ``model.py`` derives ``TritonPythonModel`` from one of them and defines how to open its stage, handle a request and close.
The base classes ensure what must be the same everywhere: ``execute`` never raises (Triton would send the client a stack trace
with paths), every request is answered, and a model that cannot work refuses to load.
"""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from bistream.config import RuntimeConfig
from bistream.errors import ShuttingDownError
from bistream.triton.free_memory import release_free_memory_now_and_then
from bistream.triton.inputs import RequestInputs
from bistream.triton.sender import Arrays, ResponseSender, data_response, error_response, public_error
from bistream.triton.startup import end_when_useless, is_decoupled, prepare_process, refusing_to_load, runtime_config, settle_memory
from bistream.wire import ModelContract


class TritonModel(ABC):
    """Life cycle of a model: ``initialize`` -> ``open``, ``execute``, ``finalize`` -> ``close``."""

    backend: ClassVar[Any]  # triton_python_backend_utils
    contract: ClassVar[ModelContract]
    config: RuntimeConfig
    decoupled: bool

    def initialize(self, args: dict[str, str]) -> None:
        self._opened = False
        self._closing = threading.Event()
        with refusing_to_load(self.backend):
            self.config = runtime_config(args["model_config"])
            self.decoupled = is_decoupled(args["model_config"])
            prepare_process(self.config, self.contract.name)
            self.open(self.config)
            self._opened = True
            settle_memory()
            end_when_useless(self.healthy)
            self._releasing_stopped = release_free_memory_now_and_then()

    def finalize(self) -> None:
        self._closing.set()
        if self._opened:
            self._releasing_stopped.set()
            self.close()
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
            raise ShuttingDownError("The server is shutting down; connect to another one.")


class DecoupledModel(TritonModel):
    """``execute`` hands over every request and returns; the stage's threads answer."""

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = self.sender(request.get_response_sender())
            try:
                self.refuse_when_closing()
                self.handle(RequestInputs(self.backend, request, self.contract), sender)
            except Exception as error:
                sender.fail(public_error(error))

    def sender(self, triton_sender: Any) -> ResponseSender:
        """How this model answers; a model that siblings call overrides it."""
        return ResponseSender(self.backend, triton_sender)

    @abstractmethod
    def handle(self, inputs: RequestInputs, sender: ResponseSender) -> None:
        """Validate, enqueue, return. An exception becomes the request's answer; otherwise ``sender`` must be finished later."""


class UnaryModel(TritonModel):
    """One request, one response, computed inside ``execute``."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            self.refuse_when_closing()
            return data_response(self.backend, self.answer(RequestInputs(self.backend, request, self.contract), request))
        except Exception as error:
            return error_response(self.backend, public_error(error))

    @abstractmethod
    def answer(self, inputs: RequestInputs, request: Any) -> Arrays:
        """The outputs by name. An exception becomes the request's answer."""
