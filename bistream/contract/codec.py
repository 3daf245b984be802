"""Between values and the arrays of the wire contract, both ways, by the table of fields: for Triton's tensors and for calls of a channel.

A value is what a program works with: ``str``, ``bytes`` (text that may be cut inside a character), ``bool``, ``int``, ``float``;
float32 [N] of an input [1, N]; other arrays in their own shape.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from bistream.contract.field import Field
from bistream.contract.fields import ModelContract
from bistream.errors import InvalidInputError

NUMPY_TYPES: dict[str, type[np.generic]] = {  # by Triton's wire name
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
    "BYTES": np.object_,
}
Arrays = dict[str, NDArray[Any]]  # by input or output name
Values = Mapping[str, Any]  # likewise
Request = TypeVar("Request")


def text_array(value: str | bytes) -> NDArray[Any]:
    return np.array([[to_bytes(value)]], dtype=np.object_)


def scalar_array(value: bool | int | float, dtype: type[np.generic]) -> NDArray[Any]:
    return np.array([[value]], dtype=dtype)


def to_bytes(text: str | bytes) -> bytes:
    """Text as UTF-8; bytes as they are."""
    return text.encode("utf-8") if isinstance(text, str) else text


# Writing


def to_array(field: Field, value: Any) -> NDArray[Any]:
    if field.datatype == "BYTES":
        return text_array(value)
    array = np.ascontiguousarray(value, dtype=NUMPY_TYPES[field.datatype])
    return array if array.ndim == len(field.dims) else array.reshape([size if size > 0 else -1 for size in field.dims])


def input_values(contract: ModelContract, values: Values) -> Values:
    """Without those that say nothing (None, an empty text or array), where they may be absent."""
    fields = contract.by_name
    return {name: value for name, value in values.items() if not (fields[name].optional and _is_empty(value))}


def input_arrays(contract: ModelContract, values: Values) -> Arrays:
    """``input_values`` as Triton takes them."""
    return {name: to_array(contract.by_name[name], value) for name, value in input_values(contract, values).items()}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes | tuple | np.ndarray) and not len(value))


def output_arrays(contract: ModelContract, values: Values) -> Arrays:
    return {field.name: to_array(field, values[field.name]) for field in contract.outputs if field.name in values}


def flat_values(request: Any) -> dict[str, Any]:
    """The values of a dataclass and of the dataclasses in it, by name."""
    values: dict[str, Any] = {}
    for one in dataclasses.fields(request):
        value = getattr(request, one.name)
        values.update(flat_values(value) if dataclasses.is_dataclass(value) else {one.name: value})
    return values


# Reading


def to_value(field: Field, array: NDArray[Any]) -> Any:
    """Checked. Arrays are copied: Triton reuses a tensor's memory once the request is answered. Raises ``InvalidInputError``."""
    if array.dtype != NUMPY_TYPES[field.datatype] or not field.fits(array.shape):
        raise InvalidInputError(f"Input {field.name} has type {array.dtype} and shape {list(array.shape)}; send it as {field.form}.")
    if field.dims != (1, 1):
        return array.reshape(-1).copy() if field.dims == (1, -1) else array.copy()
    value = array.reshape(-1).tolist()[0]
    return checked(field, to_bytes(value) if field.datatype == "BYTES" else value)


def checked(field: Field, value: Any) -> Any:
    """The value of a [1, 1] input, its text as ``str``; the default where it says nothing. Raises ``InvalidInputError``."""
    if isinstance(value, bytes) and field.is_text:
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidInputError(f"Input {field.name} is not valid UTF-8; encode it as UTF-8.") from None
    if field.check is not None:
        field.check(value)
    return value if field.datatype == "BOOL" or field.says(value) else field.default


def check_values(contract: ModelContract, request: Any) -> None:
    """All values of a dataclass that was not read from inputs. Raises ``InvalidInputError``."""
    for name, value in flat_values(request).items():
        field = contract.by_name.get(name)
        if field is not None and field.check is not None and value is not None:
            field.check(value)


class Inputs(ABC):
    """The inputs of one request, by the names of its contract. Names that the contract lacks are not looked at.

    Triton accepts a request that lacks a required input if it has an optional one, so everything is checked here.
    """

    def __init__(self, contract: ModelContract) -> None:
        self.contract = contract

    @abstractmethod
    def _has(self, name: str) -> bool: ...

    @abstractmethod
    def _given(self, field: Field) -> Any:
        """The value of an input that is there, checked. Raises ``InvalidInputError``."""

    def parameter(self, name: str) -> Any:
        """A parameter of the request: a string, a number or a truth value; ``None`` when absent."""
        return None

    def value(self, name: str) -> Any:
        """Checked; the default of the field where it is absent."""
        field = self.contract.by_name[name]
        if self._has(name):
            return self._given(field)
        if field.optional:
            return field.default
        raise InvalidInputError(f"Input {name} is missing; send it as {field.form}.")

    def required(self, name: str) -> Any:
        """Of an input that may be absent in other requests to the model."""
        value = self.value(name)
        if value is None:
            raise InvalidInputError(f"Input {name} is missing; send it as {self.contract.by_name[name].form}.")
        return value

    def read(self, kind: type[Request], **given: Any) -> Request:
        """A request: a dataclass whose fields have the names of inputs, and dataclasses of such. given: fields that are no inputs."""
        try:
            request: Request = _build(kind, self, given)
            return request
        except InvalidInputError as error:
            with suppress(InvalidInputError, KeyError):
                error.session_id = self.value("session_id")
            raise


class CallInputs(Inputs):
    """Of a call that came through a channel: plain values of a process of this server, and arrays, also of a client's request."""

    def __init__(self, values: Values, contract: ModelContract) -> None:
        super().__init__(contract)
        self._values = values

    def _has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def _given(self, field: Field) -> Any:
        value = self._values[field.name]
        if field.dims == (1, 1) and not isinstance(value, np.ndarray):
            return checked(field, value)
        return to_value(field, value if isinstance(value, np.ndarray) else to_array(field, value))


def _build(kind: Any, inputs: Inputs, given: Mapping[str, Any]) -> Any:
    values = dict(given)
    for name, inner, is_needed in _plan(kind):
        if inner is not None:
            values[name] = _build(inner, inputs, {})
        elif name in inputs.contract.by_name:
            values[name] = inputs.required(name) if is_needed else inputs.value(name)
    return kind(**values)


@functools.cache
def _plan(kind: Any) -> list[tuple[str, Any, bool]]:
    """Of every field of a dataclass: its name, its type if that is a dataclass as well, whether it has no default."""
    hints = get_type_hints(kind)
    return [
        (one.name, hints[one.name] if dataclasses.is_dataclass(hints[one.name]) else None, one.default is dataclasses.MISSING)
        for one in dataclasses.fields(kind)
    ]
