"""Between Python and tritonclient: values as tensors of the wire contract, its errors as ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from bistream.client.server_errors import HAS_CODE, server_error
from bistream.contract.codec import to_array, to_bytes
from bistream.contract.fields import COSYVOICE2_BISTREAM

_DISTRUST = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<why>[^:]+)|Hostname Verification Check failed")  # in gRPC's reasons
_FIELDS = COSYVOICE2_BISTREAM.by_name
# What a proxy before the servers makes of a lost one, in the details of a status (Envoy 1.40, grpcio 1.85), and what that means. The first
# match counts. Set up as the chart's ``files/envoy.yaml`` it answers with a code and a sentence itself, until an answer has been passed on.
_OF_PROXY = (
    (r"no healthy upstream", "No server behind {address} takes sessions at the moment; try again in a few seconds."),
    (
        r"upstream request timeout|stream timeout|response timeout",
        "The proxy at {address} has ended the session after its own time limit; switch off its route time-out (docs/deployment.md).",
    ),
    (
        r"RST_STREAM|upstream connect error|reset reason|connection termination",
        "The server that spoke this session was lost behind {address}; start the session again.",
    ),
)


def infer_input(name: str, value: Any) -> triton.InferInput:
    """A value as the tensor of the wire contract: [1, 1], or [1, N] for an array."""
    array = to_array(_FIELDS[name], value)
    tensor = triton.InferInput(name, list(array.shape), _FIELDS[name].datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def infer_request(
    model_name: str, request_id: str, values: Mapping[str, Any], parameters: Mapping[str, str], wants_empty_final: bool = True
) -> Any:
    """A streamed request as a message of the protocol. wants_empty_final: ask for it, which tritonclient's asyncio client cannot."""
    message = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    if wants_empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, text in parameters.items():
        message.parameters[name].string_param = text
    for name, value in values.items():
        datatype = _FIELDS[name].datatype
        shape, raw = raw_input(name, value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(raw)
    return message


def raw_input(name: str, value: Any) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes of a tensor. What every piece has goes without numpy, which would take longer than the rest of the message."""
    field = _FIELDS[name]
    if field.datatype == "BYTES":
        data = to_bytes(value)
        return (1, 1), len(data).to_bytes(4, "little") + data
    if field.datatype == "BOOL" and isinstance(value, bool):
        return (1, 1), bytes((value,))
    array = to_array(field, value)
    return array.shape, array.tobytes()


def stream_error(error: InferenceServerException, address: str) -> BaseException:
    """A gRPC status means that the stream is gone, for a reason that the server may have given; else it is an error of one request."""
    message = error.message() or "The server gave no reason."
    if error.status() is None or HAS_CODE.match(message):
        return server_error(message)
    for pattern, sentence in _OF_PROXY:
        if re.search(pattern, message):
            return ConnectionError(sentence.format(address=address))
    return no_answer(address, message)


def call_error(error: Any, address: str) -> BaseException:
    """As ``stream_error``. error: a ``grpc.RpcError``."""
    return stream_error(InferenceServerException(msg=error.details() or error.code().name, status=str(error.code())), address)


def no_answer(address: str, reason: str) -> ConnectionError:
    """In a sentence. reason: in the words of gRPC or of the system, or a line of something that is no server."""
    reason = " ".join(reason.split())
    if (found := _DISTRUST.search(reason)) is not None:
        why = found["why"] or "it is of another host"
        return ConnectionError(
            f"The server at {address} is not let in: its certificate is not trusted ({why}); name its authority and its host."
        )
    if re.search(r"[Cc]onnection refused|failed to connect to all addresses|[Dd]eadline [Ee]xceeded|timed out", reason):
        return ConnectionError(
            f"No server answers at {address} ({_brief(reason)}); start it, or check the address and whether it wants TLS."
        )
    if re.search(r"resol[uv]|[Nn]ame or service not known|[Dd]omain name not found", reason):
        return ConnectionError(f"The host of {address} is not known here; check the address.")
    return ConnectionError(f"The connection to {address} failed: {reason}; check that it is running, and whether it wants TLS.")


def _brief(reason: str) -> str:
    """The last part of gRPC's chain of causes."""
    return reason.removesuffix(": OK").rstrip(". ").rpartition(": ")[2]
