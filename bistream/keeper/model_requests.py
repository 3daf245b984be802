"""Asks the models of a running server as a client does: one gRPC stream, one request after the other."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from bistream.contract.codec import Arrays, scalar_array, text_array
from bistream.contract.fields import ModelContract
from bistream.contract.refusals import parse_error
from bistream.keeper.server_process import Interrupted, never

WAIT_INTERVAL_S = 0.25
CONFIG_TIMEOUT_S = 10.0
Values = Mapping[str, NDArray[Any] | str | int]
_Event = tuple[triton.InferResult | None, InferenceServerException | None]


class RequestError(Exception):
    """A model answered with an error, or not at all; the message names it. answer: what the server said."""

    def __init__(self, message: str, answer: str = "") -> None:
        super().__init__(message)
        self.answer = answer


class ModelStream:
    """A context manager. timeout_s: for each response."""

    def __init__(self, grpc_url: str, timeout_s: float, should_stop: Callable[[], bool] = never) -> None:
        self._client = triton.InferenceServerClient(grpc_url)
        self._timeout_s = timeout_s
        self._should_stop = should_stop
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._is_waiting = False

    def __enter__(self) -> ModelStream:
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A stream cancelled at the moment of an answer would keep the model from ever unloading.
        self._client.stop_stream(cancel_requests=self._is_waiting)
        self._client.close()

    def ask(self, contract: ModelContract, values: Values) -> list[Arrays]:
        """All responses with data, until the final one. Raises ``RequestError`` and ``Interrupted``."""
        inputs = [_tensor(contract, name, value) for name, value in values.items()]
        self._is_waiting = True
        self._client.async_stream_infer(contract.name, inputs, request_id=uuid.uuid4().hex, enable_empty_final_response=True)
        found: list[Arrays] = []
        is_final = False
        while not is_final:
            result, error = self._next(contract.name)
            if error is not None:
                self._is_waiting = False  # an error ends the request
                answer = error.message() or ""
                raise RequestError(f"model {contract.name}: {parse_error(answer).sentence}", answer)
            assert result is not None
            response = result.get_response()
            if outputs := {output.name: result.as_numpy(output.name) for output in response.outputs}:
                found.append(outputs)
            is_final = response.parameters["triton_final_response"].bool_param
        self._is_waiting = False
        return found

    def parameter(self, contract: ModelContract, name: str) -> str:
        """A setting of a model. Raises ``RequestError``."""
        try:
            config = self._client.get_model_config(contract.name, as_json=True, client_timeout=CONFIG_TIMEOUT_S)["config"]
        except InferenceServerException as error:
            raise RequestError(f"model {contract.name}: {error.message()}") from None
        return str(config["parameters"][name]["string_value"])

    def _next(self, model: str) -> _Event:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if self._should_stop():
                raise Interrupted
            try:
                return self._events.get(timeout=WAIT_INTERVAL_S)
            except queue.Empty:
                continue
        raise RequestError(f"model {model} did not answer within {self._timeout_s:.0f} s")


def _tensor(contract: ModelContract, name: str, value: NDArray[Any] | str | int) -> triton.InferInput:
    datatype = next(spec.datatype for spec in contract.inputs if spec.name == name)
    if isinstance(value, np.ndarray):
        array = value
    else:
        array = text_array(value) if isinstance(value, str) else scalar_array(value, triton_to_np_dtype(datatype))
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(np.ascontiguousarray(array))
    return tensor
