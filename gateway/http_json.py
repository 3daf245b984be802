"""KServe's JSON, with Triton's binary extension: an HTTP body read and checked, and an answer written. Protocol only, no server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.errors import InvalidInputError
from gateway.refusals import TooLargeError
from gateway.requests import FrontModelRequest, Tensor, bytes_tensor, check_request_id, checked_request, contract_of
from gateway.settings import GateLimits

HEADER_LENGTH = "inference-header-content-length"  # bytes of JSON in a body that goes on with binary tensors
VALUES_PER_PIECE = 8192  # of a JSON answer: a few milliseconds of work between two turns of the event loop
# Possessive, and a string that is not ended takes all that is left: each byte is looked at once, whatever the body is.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_KINDS = {"FP32": "iuf", "INT32": "iu", "INT64": "iu", "BOOL": "b"}
_DTYPES: dict[str, str] = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8", "BOOL": "|b1"}


@dataclass(frozen=True)
class HttpInfer:
    """binary: names of the outputs that the client wants as binary; ``None``: all of them."""

    request: FrontModelRequest
    binary: frozenset[str] | None

    def wants_binary(self, name: str) -> bool:
        return self.binary is None or name in self.binary


def read_infer(model: str, version: str, body: bytes, json_bytes: int | None, limits: GateLimits) -> HttpInfer:
    """json_bytes: where the binary part begins, ``None`` for plain JSON. Raises ``InvalidInputError``."""
    contract_of(model, version)
    head = body if json_bytes is None else body[:json_bytes]
    if len(head) > limits.max_json_bytes:
        raise TooLargeError(f"The JSON has more than {limits.max_json_bytes} bytes; send the recording as a binary tensor.")
    binary = b"" if json_bytes is None else body[json_bytes:]
    parsed = _object(_load(head, limits.max_json_depth), "The body")
    request_id = parsed.get("id", "")
    if not isinstance(request_id, str) or any("\ud800" <= letter <= "\udfff" for letter in request_id):
        raise InvalidInputError("The id of the request is no string of characters; send one.")
    check_request_id(request_id)
    tensors = list(_tensors(_objects(parsed, "inputs"), binary))
    outputs, wanted = _outputs(parsed)
    return HttpInfer(checked_request(model, request_id, tensors, outputs, True, limits), wanted)


def _load(data: bytes, max_depth: int) -> Any:
    depth = 0
    for match in _TOKENS.finditer(data):
        first = match[0][0]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise InvalidInputError(f"The JSON has more than {max_depth} lists and objects within each other; make it flat.")
        elif first in b"]}":
            depth -= 1
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InvalidInputError("The body is no JSON; send an inference request of KServe's protocol.") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} is no JSON object; send an inference request of KServe's protocol.")
    return value


def _objects(parsed: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = parsed.get(name, [])
    if not isinstance(values, list) or len(values) > 64:
        raise InvalidInputError(f"{name} is no list of tensors; send one object for each.")
    return [_object(value, f"An element of {name}") for value in values]


def _parameters(holder: dict[str, Any]) -> dict[str, Any]:
    parameters = _object(holder.get("parameters", {}), "parameters")
    if "shared_memory_region" in parameters or "classification" in parameters:
        raise InvalidInputError("Shared memory and classification are not served here; send and receive the values themselves.")
    return parameters


def _tensors(inputs: list[dict[str, Any]], binary: bytes) -> Iterator[Tensor]:
    begin = 0
    for one in inputs:
        name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
        if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list) or not _is_shape(shape):
            raise InvalidInputError("An input lacks its name, datatype or shape; send all three.")
        size = _parameters(one).get("binary_data_size")
        if size is None:
            yield _from_json(name, datatype, tuple(shape), one.get("data"))
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary) - begin:
            raise InvalidInputError(
                f"binary_data_size of input {name[:64]!r} does not fit the body; send the bytes of each tensor after the JSON."
            )
        yield Tensor(name, datatype, tuple(shape), binary[begin : begin + size])
        begin += size
    if begin != len(binary):
        raise InvalidInputError(f"The body has {len(binary) - begin} bytes that belong to no input; name them in binary_data_size.")


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= 8 and all(isinstance(size, int) and not isinstance(size, bool) for size in shape)


def _from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Tensor:
    problem = InvalidInputError(
        f"The data of input {name[:64]!r} are no list of values of {datatype[:16]}; send them as its datatype says."
    )
    if not isinstance(data, list):
        raise problem
    if datatype == "BYTES":
        text = data[0] if len(data) == 1 else None
        text = text[0] if isinstance(text, list) and len(text) == 1 else text
        if not isinstance(text, str):
            raise problem
        return bytes_tensor(name, text.encode("utf-8", "surrogatepass"))._replace(shape=shape)
    if datatype not in _DTYPES:
        return Tensor(name, datatype, shape, b"")  # refused by its name
    if not _are_numbers(data):  # numpy would make every element as large as the longest text
        raise problem
    try:
        array: NDArray[Any] = np.asarray(data)
        if array.size and array.dtype.kind not in _KINDS[datatype]:
            raise problem
        if datatype in ("INT32", "INT64") and array.size:
            limits = np.iinfo(_DTYPES[datatype])
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise problem
        with np.errstate(over="ignore"):
            return Tensor(name, datatype, shape, array.astype(_DTYPES[datatype]).tobytes())
    except (ValueError, OverflowError):  # ragged lists, huge numbers
        raise problem from None


def _are_numbers(data: list[Any]) -> bool:
    """Lists within each other, as deep as the JSON may be, with numbers or booleans inside."""
    return all(_are_numbers(value) if isinstance(value, list) else isinstance(value, int | float) for value in data)


def _outputs(parsed: dict[str, Any]) -> tuple[list[str], frozenset[str] | None]:
    """The names asked for, and those wanted as binary."""
    default = bool(_parameters(parsed).get("binary_data_output", False))
    names, binary = [], set()
    for one in _objects(parsed, "outputs"):
        name = one.get("name")
        if not isinstance(name, str):
            raise InvalidInputError("An output lacks its name; send it.")
        names.append(name)
        if _parameters(one).get("binary_data", default):
            binary.add(name)
    return names, None if default and not names else frozenset(binary)


@dataclass(frozen=True)
class HttpAnswer:
    """pieces: the body, made while it is sent. json_bytes: length of its JSON where a binary part follows."""

    pieces: Iterator[bytes]
    json_bytes: int | None


def write_answer(response: Any, infer: HttpInfer) -> HttpAnswer:
    """A ``ModelInferResponse`` as JSON, or as JSON and binary tensors."""
    outputs = list(zip(response.outputs, response.raw_output_contents, strict=True))
    head = {"model_name": response.model_name, "model_version": response.model_version}
    if infer.request.request_id:
        head = {"id": infer.request.request_id, **head}
    if outputs and all(infer.wants_binary(output.name) for output, _ in outputs):
        described = [{**_description(output), "parameters": {"binary_data_size": len(raw)}} for output, raw in outputs]
        text = json.dumps({**head, "outputs": described}).encode("utf-8")
        return HttpAnswer(iter([text, *(raw for _, raw in outputs)]), len(text))
    return HttpAnswer(_json_pieces(head, outputs), None)


def _description(output: Any) -> dict[str, Any]:
    return {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}


def _json_pieces(head: dict[str, str], outputs: list[tuple[Any, bytes]]) -> Iterator[bytes]:
    yield json.dumps(head)[:-1].encode("utf-8") + b', "outputs": ['
    for number, (output, raw) in enumerate(outputs):
        yield (", " if number else "").encode() + json.dumps(_description(output))[:-1].encode("utf-8") + b', "data": ['
        values = np.frombuffer(raw, _DTYPES[output.datatype])
        for begin in range(0, values.size, VALUES_PER_PIECE):
            piece = values[begin : begin + VALUES_PER_PIECE].tolist()
            yield ((", " if begin else "") + ", ".join(f"{value:.9g}" for value in piece)).encode()  # 9 digits are exact for FP32
        yield b"]}"
    yield b"]}"
