"""One request to a front model, checked against the wire contract. Independent of the protocol that it came in.

A door makes ``Tensor``s of what it received and calls ``checked_request``; whatever passes is built anew for Triton, so nothing that is
not in the contract ever reaches it: this Triton build dies of some requests that its own front end refuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bistream.contract.codec import NUMPY_TYPES, checked
from bistream.contract.field import Field
from bistream.contract.fields import COSYVOICE2, COSYVOICE2_BISTREAM, OTHER_NAMES, SPARK_TTS, ModelContract
from bistream.errors import InvalidInputError
from gateway.settings import GateLimits

PUBLIC: dict[str, ModelContract] = {contract.name: contract for contract in (COSYVOICE2_BISTREAM, COSYVOICE2, SPARK_TTS)}
LENGTH_BYTES = 4  # before the only element of a BYTES tensor, little-endian
MAX_REQUEST_ID_BYTES = 1024
_OUTPUTS = {name: frozenset(spec.name for spec in contract.outputs) for name, contract in PUBLIC.items()}


class Tensor(NamedTuple):
    """One input as it came. raw: Triton's raw contents (little-endian elements; BYTES with their lengths)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class FrontModelRequest:
    """A request whose form is right. tensors: by name. outputs: those asked for; empty is all. secret: ``session_secret``."""

    model: str
    request_id: str
    tensors: dict[str, Tensor]
    outputs: tuple[str, ...]
    wants_empty_final: bool
    secret: str | None = None

    def data(self, name: str) -> bytes:
        """The bytes of a [1, 1] BYTES input; empty when absent."""
        tensor = self.tensors.get(name)
        return b"" if tensor is None else tensor.raw[LENGTH_BYTES:]

    def flag(self, name: str, default: bool) -> bool:
        tensor = self.tensors.get(name)
        return default if tensor is None else tensor.raw != b"\0"

    @property
    def session_id(self) -> str | None:
        return self.data("session_id").decode("ascii") if "session_id" in self.tensors else None


def bytes_tensor(name: str, value: bytes) -> Tensor:
    return Tensor(name, "BYTES", (1, 1), len(value).to_bytes(LENGTH_BYTES, "little") + value)


def flag_tensor(name: str) -> Tensor:
    """True."""
    return Tensor(name, "BOOL", (1, 1), b"\1")


def cancel_request(model: str) -> FrontModelRequest:
    """Ends a session, whose id is to be added."""
    return FrontModelRequest(model, "", {"is_cancel": flag_tensor("is_cancel")}, (), True)


def served_name(model: str) -> str:
    """The name under which the server knows the model that a client means; any other word as it is."""
    return OTHER_NAMES.get(model, model)


def contract_of(model: str, version: str) -> ModelContract:
    """Raises ``InvalidInputError`` for every model but the front models."""
    contract = PUBLIC.get(model)
    if contract is None:
        raise not_served(model)
    if version not in ("", "1"):
        raise InvalidInputError(f"Model {model} has version 1 only; leave the version out.")
    return contract


def not_served(model: str) -> InvalidInputError:
    served = [name for name, contract in PUBLIC.items() if not contract.family]
    return InvalidInputError(f"Model {_quoted(model)} is not served here; use {' or '.join(served)}.")


def checked_request(
    model: str,
    request_id: str,
    tensors: Iterable[Tensor],
    outputs: Iterable[str],
    wants_empty_final: bool,
    limits: GateLimits,
) -> FrontModelRequest:
    """Names, types, shapes, lengths and sizes of a request whose model ``contract_of`` knows. Raises ``InvalidInputError``."""
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        field = _field_of(model, tensor.name)
        check_tensor(field, tensor)
        _check_value(field, tensor, limits)
        if tensor.name in by_name:
            raise InvalidInputError(f"Input {tensor.name} comes twice; send it once.")
        by_name[tensor.name] = tensor
    if model != COSYVOICE2_BISTREAM.name and not {"target_text", "source_wav"} & by_name.keys():
        raise InvalidInputError("Input target_text is missing; send it as BYTES [1, 1], or source_wav to convert a recording.")
    if not by_name:
        raise InvalidInputError("The request has no input; send target_text, or session_id with is_cancel.")
    return FrontModelRequest(model, request_id, by_name, _check_outputs(model, outputs), wants_empty_final)


def check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_BYTES:
        raise InvalidInputError(f"The request id has more than {MAX_REQUEST_ID_BYTES} characters; shorten it.")


def check_tensor(field: Field, tensor: Tensor) -> None:
    """Type, shape and length of one input. Raises ``InvalidInputError``."""
    _, datatype, shape, raw = tensor
    if datatype != field.datatype or not field.fits(shape):
        raise InvalidInputError(f"Input {field.name} has type {_quoted(datatype)} and shape {list(shape)[:8]}; send it as {field.form}.")
    if datatype == "BYTES":
        if len(raw) != LENGTH_BYTES + int.from_bytes(raw[:LENGTH_BYTES], "little"):
            raise InvalidInputError(
                f"The contents of input {field.name} are not one length of 4 bytes and so many bytes; send it in that form."
            )
    elif len(raw) != (count := math.prod(shape)) * np.dtype(NUMPY_TYPES[datatype]).itemsize:
        raise InvalidInputError(
            f"Input {field.name} has {len(raw)} bytes for {count} values of {datatype}; send as many as its shape says."
        )


def _field_of(model: str, name: str) -> Field:
    fields = PUBLIC[model].by_name
    if name not in fields:
        raise InvalidInputError(f"Model {model} has no input {_quoted(name)}; its inputs are {', '.join(fields)}.")
    return fields[name]


def _check_outputs(model: str, outputs: Iterable[str]) -> tuple[str, ...]:
    asked = tuple(outputs)
    for name in asked:
        if name not in _OUTPUTS[model]:
            raise InvalidInputError(f"Model {model} has no output {_quoted(name)}; its outputs are {', '.join(sorted(_OUTPUTS[model]))}.")
    if len(set(asked)) != len(asked):
        raise InvalidInputError("An output is asked for twice; name each once.")
    return asked


def _check_value(field: Field, tensor: Tensor, limits: GateLimits) -> None:
    """The rule of the field; without one, texts and recordings are bounded."""
    raw = tensor.raw
    if field.check is not None:
        checked(field, raw[LENGTH_BYTES:] if field.datatype == "BYTES" else np.frombuffer(raw, NUMPY_TYPES[field.datatype]).item())
    elif field.datatype == "BYTES" and len(raw) > LENGTH_BYTES + limits.max_text_bytes:
        raise InvalidInputError(f"Input {field.name} has more than {limits.max_text_bytes} bytes; shorten it.")
    elif tensor.shape[1] > limits.max_recording_samples and field.datatype == "FP32":
        raise InvalidInputError(f"Input {field.name} lasts more than {limits.max_recording_s:g} s at 16 kHz; send a shorter recording.")


def _quoted(word: str) -> str:
    """A word of the client, fit for one line of an answer."""
    return repr(word if len(word) <= 64 else word[:64] + "...")
