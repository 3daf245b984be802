"""Calls of many sessions, or their answers, as bytes: what their way costs does not depend on how many there are.

An envelope: the length of its head (uint32, little-endian); the head, JSON: for each message its number, its values by name, (name, type,
shape) of those that are bytes or arrays, its error or null, and whether it is the last; then these bytes and arrays, each from a multiple
of 8 on. Most values are numbers, truth values, short texts and token ids, which Python's JSON writes and reads in C. Pure.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.contract.codec import NUMPY_TYPES, Values
from bistream.errors import InvalidInputError

_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8
_WIRE_TYPES = {np.dtype(numpy_type): name for name, numpy_type in NUMPY_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Message:
    """A call, or an answer to it, which has the call's number.

    values: by the names of inputs or outputs: ``None``, ``bool``, ``int``, ``float``, ``str``, ``bytes``, sequences of these, and arrays.
    error: as ``refusals.format_error`` writes it; there are no values then. From the caller it says that the call is given up.
    is_last: no answer to the call follows.
    """

    number: int
    values: Values = field(default_factory=dict)
    error: str | None = None
    is_last: bool = True

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return sum(value.nbytes for value in self.values.values() if isinstance(value, np.ndarray))


def pack(messages: Iterable[Message]) -> bytes:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what ``Message`` does not name."""
    head: list[tuple[int, Values, list[tuple[str, str, tuple[int, ...]]], str | None, bool]] = []
    parts: list[memoryview | bytes] = []
    for message in messages:
        plain, specs = dict[str, Any](), []
        for name, value in message.values.items():
            if isinstance(value, np.ndarray | bytes):
                wire_type, shape, data = _packed(value)
                specs.append((name, wire_type, shape))
                parts += (data, bytes(-data.nbytes % _ALIGNMENT))
            else:
                plain[name] = value.item() if isinstance(value, np.generic) else value
        head.append((message.number, plain, specs, message.error, message.is_last))
    coded = json.dumps(head).encode()
    coded += b" " * (-(_LENGTH.size + len(coded)) % _ALIGNMENT)
    return b"".join((_LENGTH.pack(len(coded)), coded, *parts))


def _packed(value: NDArray[Any] | bytes) -> tuple[str, tuple[int, ...], memoryview]:
    """Wire type, shape, bytes. Text of a client's request is an array of one element, and ``bytes`` for the receiver."""
    if isinstance(value, np.ndarray) and value.dtype == np.object_:
        value = value.item()
    if isinstance(value, np.ndarray):
        return _WIRE_TYPES[value.dtype], value.shape, np.ascontiguousarray(value).data
    return "BYTES", (len(value),), memoryview(value)


def unpack(envelope: bytes) -> list[Message]:
    """The arrays are views of the envelope; a tuple has become a list. Raises ``InvalidInputError`` for what ``pack`` does not write."""
    try:
        return list(_messages(envelope))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error):
        raise InvalidInputError("An envelope of calls is damaged; send what bistream.transport.envelope packs.") from None


def _messages(envelope: bytes) -> Iterator[Message]:
    (length,) = _LENGTH.unpack_from(envelope)
    offset = _LENGTH.size + length
    for number, values, specs, error, is_last in json.loads(envelope[_LENGTH.size : offset]):
        if not isinstance(number, int) or not isinstance(values, dict) or not isinstance(error, str | None):
            raise TypeError
        for name, wire_type, shape in specs:
            values[name], size = _part(envelope, offset, wire_type, shape)
            offset += size + -size % _ALIGNMENT
        if not all(isinstance(name, str) for name in values):
            raise TypeError
        yield Message(number, values, error, bool(is_last))


def _part(envelope: bytes, offset: int, wire_type: str, shape: list[int]) -> tuple[bytes | NDArray[Any], int]:
    """What begins at ``offset``, and its bytes."""
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError
    count = math.prod(shape)
    if wire_type == "BYTES":
        if offset + count > len(envelope):
            raise ValueError
        return envelope[offset : offset + count], count
    if not count:
        return np.zeros(shape, NUMPY_TYPES[wire_type]), 0
    array: NDArray[Any] = np.frombuffer(envelope, NUMPY_TYPES[wire_type], count, offset).reshape(shape)
    return array, array.nbytes
