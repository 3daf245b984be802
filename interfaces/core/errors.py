"""Errors of this process, beside those of ``bistream.errors`` and of the gate, whose classes and sentences it uses where they fit.

BistreamError
├── InvalidInputError
│   ├── TooLargeError      INVALID_INPUT      a body, message or upload is beyond its limit       (the gate's)
│   └── ForbiddenError     FORBIDDEN          what is not the caller's; a page or a host that is not let in
├── UnknownSpeakerError    UNKNOWN_SPEAKER    there is no voice of this name: ``unknown_voice``
├── UnreachableError       UNREACHABLE        no server answers                                   (retryable)
└── SlowReaderError        SLOW_READER        the client does not read what it asked for           (the client library's)
"""

from __future__ import annotations

from bistream.client.server_errors import SlowReaderError
from bistream.errors import BistreamError, InvalidInputError, UnknownSpeakerError
from gateway.refusals import TooLargeError

__all__ = ["ForbiddenError", "SlowReaderError", "TooLargeError", "UnreachableError", "unknown_voice"]


NO_SERVER = "No speech server answers at the moment; try again in a few seconds."


class ForbiddenError(InvalidInputError):
    code = "FORBIDDEN"


class UnreachableError(BistreamError):
    code = "UNREACHABLE"
    retryable = True


def unknown_voice(name: str) -> UnknownSpeakerError:
    return UnknownSpeakerError(f"There is no voice {name[:64]!r}; list the voices with GET /v1/audio/voices, or upload one.")
