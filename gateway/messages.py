"""Triton's protobuf messages: requests read, checked and built anew; answers rendered as Triton's clients expect them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.contract.checks import check_session_secret
from bistream.contract.fields import SESSION_SECRET_PARAMETER
from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, InvalidInputError
from gateway.requests import FrontModelRequest, Tensor, check_request_id, checked_request, contract_of, served_name
from gateway.settings import GateLimits

FINAL = "triton_final_response"
WANTS_EMPTY_FINAL = "triton_enable_empty_final_response"
SHARED_MEMORY_PARAMETER = "shared_memory_region"
CLASSIFICATION_PARAMETER = "classification"


def parse_request(data: bytes) -> Any:
    """A ``ModelInferRequest``. Raises ``InvalidInputError``."""
    try:
        return service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        raise InvalidInputError("The message is no ModelInferRequest; send one of Triton's inference protocol.") from None


def wants_empty_final(message: Any) -> bool:
    """Whether the client asked for the final response also where it is empty. Leaves ``message`` as it is."""
    parameters = message.parameters
    return WANTS_EMPTY_FINAL in parameters and bool(parameters[WANTS_EMPTY_FINAL].bool_param)


def read_request(message: Any, limits: GateLimits) -> FrontModelRequest:
    """Raises ``InvalidInputError``."""
    model = served_name(message.model_name)
    contract = contract_of(model, message.model_version)
    check_request_id(message.id)
    if len(message.inputs) > len(contract.inputs):
        raise InvalidInputError(
            f"The request has {len(message.inputs)} inputs, and model {model} has {len(contract.inputs)}; send each once."
        )
    outputs = [output.name for output in message.outputs] if message.outputs else ()
    for output in message.outputs:
        _check_parameters(output)
    request = checked_request(model, message.id, _tensors(message), outputs, wants_empty_final(message), limits)
    if SESSION_SECRET_PARAMETER not in message.parameters:
        return request
    check_session_secret(secret := message.parameters[SESSION_SECRET_PARAMETER].string_param)
    return replace(request, secret=secret)


def _tensors(message: Any) -> Iterator[Tensor]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidInputError(
            f"The request has {len(raw)} raw contents for {len(message.inputs)} inputs; send one for each, in their order."
        )
    for index, tensor in enumerate(message.inputs):
        if tensor.parameters:
            _check_parameters(tensor)
        if raw and tensor.HasField("contents"):
            raise InvalidInputError("An input has both contents and raw contents; send one of them.")
        yield Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw[index] if raw else _raw_of(tensor))


def _check_parameters(tensor: Any) -> None:
    if SHARED_MEMORY_PARAMETER in tensor.parameters:
        raise InvalidInputError("Shared memory is not served here; send and receive the values in the messages.")
    if CLASSIFICATION_PARAMETER in tensor.parameters:
        raise InvalidInputError("Classification is not served here; ask for the output itself.")


_TYPED: dict[str, Callable[[Any], bytes]] = {
    "BOOL": lambda contents: bytes(contents.bool_contents),
    "INT32": lambda contents: struct.pack(f"<{len(contents.int_contents)}i", *contents.int_contents),
    "INT64": lambda contents: struct.pack(f"<{len(contents.int64_contents)}q", *contents.int64_contents),
    "FP32": lambda contents: struct.pack(f"<{len(contents.fp32_contents)}f", *contents.fp32_contents),
    "BYTES": lambda contents: b"".join(len(item).to_bytes(4, "little") + item for item in contents.bytes_contents),
}


def _raw_of(tensor: Any) -> bytes:
    """The raw contents of an input that came in typed fields. A type that no contract has gives nothing and is refused by name."""
    pack = _TYPED.get(tensor.datatype)
    return b"" if pack is None else pack(tensor.contents)


def request_bytes(request: FrontModelRequest, request_id: str, tensors: dict[str, Tensor]) -> bytes:
    """The request for Triton: the checked values, an id of ours, and always with the empty final response."""
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request_id)
    message.parameters[WANTS_EMPTY_FINAL].bool_param = True
    inputs, contents = message.inputs, message.raw_input_contents
    for name, datatype, shape, raw in tensors.values():
        inputs.add(name=name, datatype=datatype, shape=shape)
        contents.append(raw)
    for name in request.outputs:
        message.outputs.add(name=name)
    data: bytes = message.SerializeToString()
    return data


def is_final(response: Any) -> bool:
    """Whether nothing follows this response. Triton's own front end sends errors without the parameter, and nothing after them."""
    parameters = response.infer_response.parameters
    if FINAL in parameters:
        return bool(parameters[FINAL].bool_param)
    return bool(response.error_message)


def error_bytes(model: str, request_id: str, error: BistreamError) -> bytes:
    """As a model's error leaves Triton; the final response follows."""
    response = service_pb2.ModelStreamInferResponse(error_message=format_error(error))
    return _with_final(response, model, request_id, False)


def final_bytes(model: str, request_id: str) -> bytes:
    return _with_final(service_pb2.ModelStreamInferResponse(), model, request_id, True)


def data_bytes(response: Any, request_id: str) -> bytes:
    """A response of Triton under the id that the client gave its request. Changes ``response``."""
    response.infer_response.id = request_id
    data: bytes = response.SerializeToString()
    return data


def _with_final(response: Any, model: str, request_id: str, final: bool) -> bytes:
    response.infer_response.id = request_id
    response.infer_response.model_name = model
    response.infer_response.parameters[FINAL].bool_param = final
    data: bytes = response.SerializeToString()
    return data


def audio_bytes(response: Any) -> int:
    """Bytes of output in a ``ModelInferResponse``."""
    return sum(map(len, response.raw_output_contents))
