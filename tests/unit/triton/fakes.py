"""A stand-in for ``pb_utils`` that fails loudly where the real one corrupts memory or kills the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.transport.outbox import Outbox

Arrays = dict[str, NDArray[Any]]
HOLD_TIMEOUT_S = 240.0


class Violation(BaseException):
    """A call that would crash the server. Not an ``Exception``, so that no handler hides it."""


class FakeTensor:
    def __init__(self, name: str, array: NDArray[Any]) -> None:
        assert array.flags.c_contiguous
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._array


class FakeError:
    INVALID_ARG, NOT_FOUND, ALREADY_EXISTS, UNAVAILABLE, CANCELLED, INTERNAL = range(6)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self.code = message, code

    def message(self) -> str:
        return self._message


class FakeResponse:
    def __init__(self, output_tensors: Sequence[FakeTensor] = (), error: FakeError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[FakeTensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> FakeError:
        assert self._error is not None
        return self._error

    def arrays(self) -> Arrays:
        return {tensor.name(): tensor.as_numpy() for tensor in self._tensors}


class FakeSender:
    """Records what is sent. Two calls at the same time, and any call after the final flag, are violations."""

    def __init__(self) -> None:
        self.sent: list[tuple[FakeResponse | None, bool]] = []
        self.cancelled = False
        self.violations: list[str] = []
        self.raises: Exception | None = None
        self._busy = threading.Lock()
        self._finished = False

    def _enter(self, call: str) -> None:
        if not self._busy.acquire(blocking=False):
            self._violate(f"{call} during another call")
        if self._finished:
            self._violate(f"{call} after the final flag")

    def _violate(self, what: str) -> None:
        self.violations.append(what)
        raise Violation(what)

    def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
        self._enter("send")
        try:
            if self.raises is not None:
                raise self.raises
            self.sent.append((response, flags == 1))
            self._finished = flags == 1
        finally:
            self._busy.release()

    def is_cancelled(self) -> bool:
        self._enter("is_cancelled")
        try:
            return self.cancelled
        finally:
            self._busy.release()

    @property
    def finals(self) -> int:
        return sum(final for _, final in self.sent)

    @property
    def data(self) -> list[Arrays]:
        return [response.arrays() for response, _ in self.sent if response is not None and not response.has_error()]

    @property
    def errors(self) -> list[str]:
        return [response.error().message() for response, _ in self.sent if response is not None and response.has_error()]


class FakeRequest:
    """A request of a client."""

    def __init__(self, sender: FakeSender | None = None, **arrays: NDArray[Any]) -> None:
        self.arrays = arrays
        self.sender = sender or FakeSender()
        self.given_parameters: dict[str, object] = {}
        self.cancelled = False
        self.answered = False

    def inputs(self) -> list[FakeTensor]:
        return [FakeTensor(name, array) for name, array in self.arrays.items()]

    def get_response_sender(self) -> FakeSender:
        return self.sender

    def parameters(self) -> str:
        return json.dumps(self.given_parameters)

    def is_cancelled(self) -> bool:
        if self.answered:
            raise Violation("is_cancelled after the request was answered")
        return self.cancelled


class FakeInferenceRequest:
    """A request that a model makes; ``answer`` of its ``FakePbUtils`` says what comes back."""

    def __init__(self, backend: FakePbUtils, model_name: str, requested_output_names: list[str], inputs: list[FakeTensor]) -> None:
        self._backend = backend
        self.model_name = model_name
        self.requested_output_names = requested_output_names
        self.arrays = {tensor.name(): tensor.as_numpy() for tensor in inputs}

    def exec(self, decoupled: bool) -> FakeResponse:
        if decoupled:
            raise Violation("an iterator that receives a second response can lock up the waiting process")
        (response,) = self._backend.answer(self.model_name, self.arrays)
        return response

    def is_cancelled(self) -> bool:
        raise Violation("is_cancelled of a request made by a model aborts the server")


class FakePbUtils:
    """``calls``: (model, inputs) of all requests made by models."""

    Tensor = FakeTensor
    TritonError = FakeError
    InferenceResponse = FakeResponse
    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    class TritonModelException(Exception):
        pass

    def __init__(self, answer: Callable[[str, Arrays], list[FakeResponse]] | None = None) -> None:
        self.calls: list[tuple[str, Arrays]] = []
        self._answer = answer

    def answer(self, model: str, arrays: Arrays) -> list[FakeResponse]:
        self.calls.append((model, arrays))
        assert self._answer is not None
        return self._answer(model, arrays)

    def InferenceRequest(self, **arguments: Any) -> FakeInferenceRequest:
        return FakeInferenceRequest(self, **arguments)


def response(**arrays: NDArray[Any]) -> FakeResponse:
    return FakeResponse([FakeTensor(name, array) for name, array in arrays.items()])


def error_response(message: str) -> FakeResponse:
    return FakeResponse(error=FakeError(message))


def text(value: str | bytes) -> NDArray[Any]:
    return np.array([[value.encode() if isinstance(value, str) else value]], dtype=np.object_)


@contextmanager
def held(outbox: Outbox) -> Iterator[None]:
    """Within the block its thread sends nothing."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(HOLD_TIMEOUT_S)

    outbox.submit(wait)
    assert begun.wait(HOLD_TIMEOUT_S)
    try:
        yield
    finally:
        go_on.set()
