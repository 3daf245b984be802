"""Between Python and tritonclient: values as tensors of the wire contract, its errors as ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from bistream.client.proxy_errors import proxy_sentence
from bistream.client.server_errors import HAS_CODE, server_error
from bistream.wire import COSYVOICE2_BISTREAM, TensorSpec

_NUMPY_TYPES: dict[str, type] = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
_DISTRUST = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<why>[^:]+)|Hostname Verification Check failed")  # in gRPC's reasons
_SPECS: dict[str, TensorSpec] = {spec.name: spec for spec in COSYVOICE2_BISTREAM.inputs}


def infer_input(name: str, value: Any) -> triton.InferInput:
    """A value as the tensor of the wire contract: [1, 1], or [1, N] for an array."""
    array = _array(_SPECS[name], value)
    tensor = triton.InferInput(name, list(array.shape), _SPECS[name].datatype)
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
        datatype = _SPECS[name].datatype
        shape, raw = raw_input(name, value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(raw)
    return message


def raw_input(name: str, value: Any) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes of a tensor. What every piece has goes without numpy, which would take longer than the rest of the message."""
    spec = _SPECS[name]
    if spec.datatype == "BYTES":
        data = to_bytes(value)
        return (1, 1), len(data).to_bytes(4, "little") + data
    if spec.datatype == "BOOL" and isinstance(value, bool):
        return (1, 1), bytes((value,))
    array = _array(spec, value)
    return array.shape, array.tobytes()


def _array(spec: TensorSpec, value: Any) -> NDArray[Any]:
    if spec.datatype == "BYTES":
        return np.array([[to_bytes(value)]], dtype=np.object_)
    return np.ascontiguousarray(value, dtype=_NUMPY_TYPES[spec.datatype]).reshape(1, -1)


def to_bytes(text: str | bytes) -> bytes:
    """Text as UTF-8; bytes as they are."""
    return text.encode("utf-8") if isinstance(text, str) else text


def stream_error(error: InferenceServerException, address: str) -> BaseException:
    """A gRPC status means that the stream is gone, for a reason that the server may have given; else it is an error of one request."""
    message = error.message() or "The server gave no reason."
    if error.status() is None:
        return server_error(message)
    if HAS_CODE.match(message):
        return server_error(message)
    if (sentence := proxy_sentence(message, address)) is not None:
        return ConnectionError(sentence)
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
