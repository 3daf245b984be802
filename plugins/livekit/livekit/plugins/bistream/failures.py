"""Errors of the speech server as the framework's, by which it decides whether to try again."""

from __future__ import annotations

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError

from bistream.errors import BistreamError

# The HTTP statuses that the gate uses for these codes. 4xx are final but for 429; 499 ends a stream quietly.
_STATUSES = {
    "INVALID_INPUT": 400,
    "UNAUTHENTICATED": 401,
    "UNKNOWN_SPEAKER": 404,
    "NOT_SERVED": 404,
    "SESSION_TIMEOUT": 408,
    "BUSY": 429,
    "CANCELLED": 499,
    "SHUTTING_DOWN": 503,
}


def api_error(error: BistreamError | OSError) -> APIError:
    """error: as ``Utterance`` raises it."""
    if isinstance(error, BistreamError):
        return APIStatusError(error.sentence, status_code=_STATUSES.get(error.code, 500), request_id=error.session_id)
    if isinstance(error, TimeoutError):
        return APITimeoutError(str(error))
    return APIConnectionError(str(error), retryable=isinstance(error, ConnectionError))
