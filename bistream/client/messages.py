"""Messages of one session's stream: requests as bytes, and the outputs of an answer. Both come ten times a second and caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from bistream.client.exchange import Request
from bistream.client.translation import infer_request, raw_input

_NUMPY_TYPES: dict[str, Any] = {"FP32": np.float32, "INT32": np.int32}


class RequestMessages:
    """Requests as bytes of the protocol. The pieces of a session differ in little, so the rest is made once: it would take two thirds of
    the time of a piece."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._head = b""  # what pieces with the same inputs and parameters have in common
        self._head_of: tuple[Mapping[str, str], list[str]] | None = None

    def encoded(self, request: Request) -> bytes:
        values, parameters = request.values, request.parameters
        if values.get("is_start"):
            data: bytes = infer_request(self._model_name, request.request_id, values, parameters).SerializeToString()
            return data
        if self._head_of != (parameters, list(values)):
            # Only the start's last answer means something, so that of a piece is not asked for.
            head = infer_request(self._model_name, "", values, parameters, wants_empty_final=False)
            head.ClearField("raw_input_contents")
            self._head, self._head_of = head.SerializeToString(), (dict(parameters), list(values))
        # Two messages one after the other are the message in which they are merged (protobuf's encoding).
        contents = [raw_input(name, value)[1] for name, value in values.items()]
        rest: bytes = service_pb2.ModelInferRequest(id=request.request_id, raw_input_contents=contents).SerializeToString()
        return self._head + rest


class Result:
    """The outputs of one answer, as ``SessionExchange`` reads them. Raises ``KeyError`` and ``ValueError`` for what is no answer."""

    def __init__(self, response: Any) -> None:
        self._response = response
        named = zip(response.outputs, response.raw_output_contents, strict=True)
        self._tensors = {tensor.name: (tensor.datatype, raw) for tensor, raw in named}

    def get_response(self) -> Any:
        return self._response

    def as_numpy(self, name: str) -> NDArray[Any] | None:
        found = self._tensors.get(name)
        return None if found is None else np.frombuffer(found[1], _NUMPY_TYPES[found[0]])
