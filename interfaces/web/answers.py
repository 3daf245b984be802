"""Errors as OpenAI's clients read them: status, headers and body."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    InvalidInputError,
    SessionTimeoutError,
    ShuttingDownError,
    UnauthenticatedError,
    UnknownSpeakerError,
)
from interfaces.core.errors import ForbiddenError, SlowReaderError, TooLargeError, UnreachableError
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


def error_response(error: BistreamError, param: str | None = None) -> JSONResponse:
    """param: the field of the request that is at fault."""
    status = _kind_of(error)[0]
    headers = {"x-should-retry": "true" if status in _RETRYABLE and not isinstance(error, QuotaError) else "false"}
    if isinstance(error, BusyError) and error.retryable:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    elif status == 503:
        headers["retry-after"] = str(DRAIN_RETRY_AFTER_S if isinstance(error, ShuttingDownError) else 2)
    return JSONResponse({"error": error_object(error, param)}, status, headers)


def error_object(error: BistreamError, param: str | None = None) -> dict[str, Any]:
    """param: as of ``error_response``."""
    _, kind, code = _kind_of(error)
    return {"message": error.sentence, "type": kind, "param": param, "code": code}


def _kind_of(error: BistreamError) -> tuple[int, str, str | None]:
    """Status, type and code."""
    kinds = ((status, kind, code) for cls, status, kind, code in _STATUS if isinstance(error, cls))
    return next(kinds, (500, "server_error", None))
