"""Errors of the server as exceptions: the models' own codes, the gate's, and what Triton refuses in its own words before a model sees it.

Triton's words carry no code. Through the gate they are translated there; a client that talks to Triton itself gets them as they are.
"""

from __future__ import annotations

import re

from bistream.contract.refusals import parse_error
from bistream.errors import (
    ERRORS_BY_CODE,
    GATE_ERRORS,
    BistreamError,
    BusyError,
    EngineError,
    InvalidInputError,
    NotServedError,
    ShuttingDownError,
    WrongCallError,
)


class SlowReaderError(BistreamError):
    """Audio was not taken as it came."""

    code = "SLOW_READER"


_OF_GATE: dict[str, type[BistreamError]] = {error.code: error for error in GATE_ERRORS}
HAS_CODE = re.compile(rf"({'|'.join((*ERRORS_BY_CODE, *_OF_GATE))}): ")  # at the start of a message
_CODE = re.compile(rf"(?P<code>{'|'.join(_OF_GATE)}): (?P<sentence>.*)", re.DOTALL)
# Parts of Triton's messages (server 2.51), and what they mean. The first match counts.
_MEANINGS: tuple[tuple[str, type[BistreamError], str], ...] = (
    (
        r"has no available versions|is not ready|is being unloaded",
        ShuttingDownError,
        "The server is shutting down; use another one.",
    ),
    (r"unknown model|is not found", NotServedError, "The server has no such model; check the model name and its version."),
    (r"decoupled transaction policy", WrongCallError, "This model streams; call it through a gRPC stream."),
    (r"generate expects model to produce exactly 1 response", WrongCallError, "This model streams; call it through a gRPC stream."),
    (r"Exceeds maximum queue size", BusyError, "The server's queue is full; try again later."),
    (
        r"inference (in|out)put|input dimensions|for input '|string data|expected (number of|\d+) inputs|failed to (parse|read)"
        r"|out of bounds index|has no shape|batch[- ]size",
        InvalidInputError,
        "An input has a wrong name, type or shape; send the tensors of the wire contract.",
    ),
)


def server_error(message: str) -> BistreamError:
    """The error in a message of the server. Words of Triton that are not known become ``EngineError``; its words are always kept."""
    error = parse_error(message)
    if type(error) is not BistreamError:
        return error
    match = _CODE.search(message)
    if match is not None:
        return _OF_GATE[match["code"]](match["sentence"])
    for pattern, kind, sentence in _MEANINGS:
        if re.search(pattern, message):
            return kind(f"{sentence} Triton said: {_one_line(message)}")
    return EngineError(f"The server failed and gave no code; try again. It said: {_one_line(message)}")


def _one_line(message: str) -> str:
    return " ".join(message.split())
