"""Errors of the speech server as the framework's categories: those that are permanent there end the work of the service."""

from __future__ import annotations

from pipecat.utils.errors import ErrorCategory

from bistream.errors import BistreamError

_CATEGORIES = {
    "UNAUTHENTICATED": ErrorCategory.AUTHENTICATION,
    "UNKNOWN_SPEAKER": ErrorCategory.INVALID_REQUEST,
    "NOT_SERVED": ErrorCategory.INVALID_REQUEST,
    "INVALID_INPUT": ErrorCategory.APPLICATION,  # of this text; the next one may be spoken
    "BUSY": ErrorCategory.RATE_LIMIT,
}


def category(error: Exception) -> ErrorCategory:
    """error: as ``Utterance`` raises it."""
    if isinstance(error, BistreamError):
        return _CATEGORIES.get(error.code, ErrorCategory.SERVER)
    return ErrorCategory.CONNECTIVITY if isinstance(error, OSError) else ErrorCategory.UNKNOWN
