"""Errors as OpenAI's clients read them: status, headers and body. No framework."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    InvalidInputError,
    SessionTimeoutError,
    ShuttingDownError,
    UnknownSpeakerError,
)
from interfaces.core.errors import ForbiddenError, SlowReaderError, TooLargeError, UnauthenticatedError, UnreachableError
from interfaces.core.service import DRAIN_RETRY_AFTER_S
from interfaces.core.shares import QuotaError

_STATUS: tuple[tuple[type[BistreamError], int, str, str | None], ...] = (  # class, status, type, code
    (TooLargeError, 413, "invalid_request_error", "too_large"),
    (ForbiddenError, 403, "permission_error", "forbidden"),
    (InvalidInputError, 400, "invalid_request_error", None),
    (UnknownSpeakerError, 404, "invalid_request_error", "voice_not_found"),
    (UnauthenticatedError, 401, "authentication_error", "invalid_api_key"),
    (BusyError, 429, "rate_limit_error", "busy"),
    (ShuttingDownError, 503, "server_error", "shutting_down"),
    (UnreachableError, 503, "server_error", "no_server"),
    (SessionTimeoutError, 408, "server_error", "timeout"),
    (SlowReaderError, 408, "server_error", "slow_reader"),
    (CancelledError, 409, "invalid_request_error", "cancelled"),
)
_RETRYABLE = {408, 429, 500, 503}


@dataclass(frozen=True)
class ErrorAnswer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]


def error_answer(error: BistreamError, param: str | None = None) -> ErrorAnswer:
    """param: the field of the request that is at fault."""
    status, kind, code = next(
        ((status, kind, code) for cls, status, kind, code in _STATUS if isinstance(error, cls)), (500, "server_error", None)
    )
    headers = {"x-should-retry": "true" if status in _RETRYABLE and not isinstance(error, QuotaError) else "false"}
    if isinstance(error, BusyError) and error.retryable:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    elif status == 503:
        headers["retry-after"] = str(DRAIN_RETRY_AFTER_S if isinstance(error, ShuttingDownError) else 2)
    return ErrorAnswer(status, headers, {"error": {"message": error.sentence, "type": kind, "param": param, "code": code}})
