"""The gRPC and HTTP status of every error."""

from __future__ import annotations

import math
from http import HTTPStatus

import grpc

from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    EngineError,
    InvalidInputError,
    NotServedError,
    SessionExistsError,
    SessionTimeoutError,
    ShuttingDownError,
    UnauthenticatedError,
    UnknownSessionError,
    UnknownSpeakerError,
    UnknownVoiceError,
    WrongCallError,
)


class TooLargeError(InvalidInputError):
    """An HTTP body beyond its limit."""


_STATUS: dict[type[BistreamError], tuple[grpc.StatusCode, HTTPStatus]] = {
    TooLargeError: (grpc.StatusCode.RESOURCE_EXHAUSTED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    InvalidInputError: (grpc.StatusCode.INVALID_ARGUMENT, HTTPStatus.BAD_REQUEST),
    UnknownSpeakerError: (grpc.StatusCode.NOT_FOUND, HTTPStatus.NOT_FOUND),
    UnknownVoiceError: (grpc.StatusCode.NOT_FOUND, HTTPStatus.NOT_FOUND),
    UnknownSessionError: (grpc.StatusCode.NOT_FOUND, HTTPStatus.NOT_FOUND),
    SessionExistsError: (grpc.StatusCode.ALREADY_EXISTS, HTTPStatus.CONFLICT),
    SessionTimeoutError: (grpc.StatusCode.DEADLINE_EXCEEDED, HTTPStatus.REQUEST_TIMEOUT),
    CancelledError: (grpc.StatusCode.CANCELLED, HTTPStatus.CONFLICT),
    BusyError: (grpc.StatusCode.RESOURCE_EXHAUSTED, HTTPStatus.TOO_MANY_REQUESTS),
    EngineError: (grpc.StatusCode.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
    ShuttingDownError: (grpc.StatusCode.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, HTTPStatus.UNAUTHORIZED),
    NotServedError: (grpc.StatusCode.NOT_FOUND, HTTPStatus.NOT_FOUND),
    WrongCallError: (grpc.StatusCode.UNIMPLEMENTED, HTTPStatus.NOT_IMPLEMENTED),
}


def grpc_status(error: BistreamError) -> grpc.StatusCode:
    return _STATUS.get(type(error), (grpc.StatusCode.INTERNAL, None))[0]


def http_status(error: BistreamError) -> int:
    return int(_STATUS.get(type(error), (None, HTTPStatus.INTERNAL_SERVER_ERROR))[1])


def retry_after(error: BistreamError) -> dict[str, str]:
    """The HTTP header that says in whole seconds when to try again; empty where the error does not say it."""
    return {} if error.retry_after_s is None else {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
