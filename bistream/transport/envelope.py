"""Calls of many sessions, or their answers, as bytes: what their way costs does not depend on how many there are.

An envelope: the length of its head (uint32, little-endian); the head, JSON: for each message its number, its error or null,
(name, type, shape) of its arrays, and whether it is the last; the bytes of all arrays, each from a multiple of 8 on. Pure.
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

from bistream.contract.codec import NUMPY_TYPES, Arrays, text_array
from bistream.errors import InvalidInputError

_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8
_WIRE_TYPES = {np.dtype(numpy_type): name for name, numpy_type in NUMPY_TYPES.items()}


@dataclass(frozen=True)
class Message:
    """A call, or an answer to it, which has the call's number.

    error: as ``refusals.format_error`` writes it; there are no arrays then. From the caller it says that the call is given up.
    is_last: no answer to the call follows.
    """

    number: int
    arrays: Arrays = field(default_factory=dict)
    error: str | None = None
    is_last: bool = True

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(array.nbytes for array in self.arrays.values())


def pack(messages: Iterable[Message]) -> bytes:
    """BYTES arrays must have one element."""
    head: list[tuple[int, str | None, list[tuple[str, str, tuple[int, ...]]], bool]] = []
    parts: list[bytes | memoryview] = []
    for message in messages:
        specs = []
        for name, array in message.arrays.items():
            wire_type = _WIRE_TYPES[array.dtype]
            data = array.item() if wire_type == "BYTES" else np.ascontiguousarray(array).data
            size = len(data) if isinstance(data, bytes) else data.nbytes
            specs.append((name, wire_type, (size,) if wire_type == "BYTES" else array.shape))
            parts += (data, bytes(-size % _ALIGNMENT))
        head.append((message.number, message.error, specs, message.is_last))
    coded = json.dumps(head, separators=(",", ":")).encode()
    coded += b" " * (-(_LENGTH.size + len(coded)) % _ALIGNMENT)
    return b"".join((_LENGTH.pack(len(coded)), coded, *parts))


def unpack(envelope: bytes) -> list[Message]:
    """The arrays are views of the envelope. Raises ``InvalidInputError`` for anything that ``pack`` does not write."""
    try:
        return list(_messages(memoryview(envelope)))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error):
        raise InvalidInputError("An envelope of calls is damaged; send what bistream.transport.envelope packs.") from None


def _messages(data: memoryview) -> Iterator[Message]:
    (length,) = _LENGTH.unpack_from(data)
    head = json.loads(bytes(data[_LENGTH.size : _LENGTH.size + length]))
    offset = _LENGTH.size + length
    for number, error, specs, is_last in head:
        arrays: Arrays = {}
        for name, wire_type, shape in specs:
            arrays[name], size = _array(data, offset, wire_type, shape)
            offset += size + -size % _ALIGNMENT
        if not isinstance(number, int) or not isinstance(error, str | None) or not all(isinstance(name, str) for name in arrays):
            raise TypeError
        yield Message(number, arrays, error, bool(is_last))


def _array(data: memoryview, offset: int, wire_type: str, shape: list[int]) -> tuple[NDArray[Any], int]:
    """An array that begins at ``offset``, and its bytes."""
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError
    if wire_type == "BYTES":
        (size,) = shape
        if offset + size > len(data):
            raise ValueError
        return text_array(bytes(data[offset : offset + size])), size
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, NUMPY_TYPES[wire_type]), 0
    array: NDArray[Any] = np.frombuffer(data, NUMPY_TYPES[wire_type], count, offset).reshape(shape)
    return array, array.nbytes
