"""Calls between front models and models over Unix sockets: where they are, and how envelopes follow each other on them.

A call over BLS passes through the server and wakes six threads of three processes, there and back; on a socket it wakes one or two, and
takes a fifth of the time (docs/log/gpu.md). The sockets lie in the directory that the keeper shares with its models, or in that of
temporary files where there is no keeper; the server's own user alone can connect.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

from bistream.errors import InvalidInputError
from bistream.processes.control_files import CONTROL_VARIABLE
from bistream.transport.envelope import Message, pack, unpack

BUFFER_BYTES = 4 * 2**20  # of each direction in the kernel, if it allows as much: a first hop and a chunk fit, and nothing blocks
MAX_ENVELOPE_BYTES = 2**28
READ_BYTES = 2**18
_LENGTH = struct.Struct("<Q")


def socket_path(model: str) -> Path:
    """Where a model listens. Without a keeper the name has the process id of the server, which has started all model processes."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if directory:
        return Path(directory) / f"{model}.calls"
    return Path(tempfile.gettempdir()) / f"bistream-{os.getuid()}-{os.getppid()}-{model}.calls"


def frame(messages: list[Message]) -> bytes:
    """One envelope with its length before it."""
    envelope = pack(messages)
    return _LENGTH.pack(len(envelope)) + envelope


class Frames:
    """Takes what arrives in portions of any size, and gives the messages of complete envelopes. Not thread-safe."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Raises ``InvalidInputError`` for what ``frame`` does not write; whatever follows means nothing then."""
        self._received += data
        messages: list[Message] = []
        begin = 0
        while len(self._received) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, begin)
            if length > MAX_ENVELOPE_BYTES:
                raise InvalidInputError("An envelope of calls is too long; send what bistream.transport.call_sockets frames.")
            envelope, end = begin + _LENGTH.size, begin + _LENGTH.size + length
            if end > len(self._received):
                break
            messages += unpack(bytes(memoryview(self._received)[envelope:end]))  # arrays are views of these bytes
            begin = end
        del self._received[:begin]
        return messages
