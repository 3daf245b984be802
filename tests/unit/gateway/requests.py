"""Requests for the tests, right and wrong, as protobuf messages and as checked requests."""

from __future__ import annotations

import struct
from typing import Any

from tritonclient.grpc import service_pb2

from gateway.messages import read_request
from gateway.requests import FrontModelRequest
from gateway.settings import GateLimits

BISTREAM, OFFLINE, SPARK = "cosyvoice2_bistream", "cosyvoice2", "spark_tts"
INT64_INPUTS, INT32_INPUTS = ("seed",), ("top_k", "reference_wav_len")


def raw_of(name: str, value: Any) -> tuple[str, list[int], bytes]:
    """(datatype, shape, raw contents) of a Python value for an input."""
    if isinstance(value, bool):
        return "BOOL", [1, 1], bytes([value])
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return "BYTES", [1, 1], len(data).to_bytes(4, "little") + data
    if isinstance(value, list):
        return "FP32", [1, len(value)], struct.pack(f"<{len(value)}f", *value)
    if name in INT64_INPUTS:
        return "INT64", [1, 1], struct.pack("<q", value)
    if name in INT32_INPUTS:
        return "INT32", [1, 1], struct.pack("<i", value)
    return "FP32", [1, 1], struct.pack("<f", value)


def message(model: str = BISTREAM, request_id: str = "r", wants_final: bool = True, outputs: tuple[str, ...] = (), **values: Any) -> Any:
    """A ``ModelInferRequest``."""
    made = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if wants_final:
        made.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in values.items():
        datatype, shape, raw = raw_of(name, value)
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(raw)
    for name in outputs:
        made.outputs.add(name=name)
    return made


def request(model: str = BISTREAM, request_id: str = "r", wants_final: bool = True, **values: Any) -> FrontModelRequest:
    return read_request(message(model, request_id, wants_final, **values), GateLimits())


def start(
    session_id: str | None, text: str | bytes = "", is_end: bool = False, request_id: str = "start", **values: Any
) -> FrontModelRequest:
    named: dict[str, Any] = {} if session_id is None else {"session_id": session_id}
    return request(request_id=request_id, target_text=text, is_start=True, is_end=is_end, **named, **values)


def append(session_id: str, text: str | bytes = "", is_end: bool = False, request_id: str = "append") -> FrontModelRequest:
    return request(request_id=request_id, session_id=session_id, target_text=text, is_start=False, is_end=is_end)


def cancel(session_id: str, request_id: str = "cancel") -> FrontModelRequest:
    return request(request_id=request_id, session_id=session_id, is_cancel=True)
