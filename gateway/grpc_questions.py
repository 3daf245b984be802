"""The unary calls of the gRPC door that ask about the server: Triton's public ones, and gRPC's own health protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2

from bistream.errors import InvalidInputError
from gateway import public
from gateway.gate import Gate
from gateway.grpc_call import CallError
from gateway.requests import served_name
from gateway.upstream import SERVICE

HEALTH = "grpc.health.v1.Health"
Question = Callable[[Any], Awaitable[Any]]


def questions(gate: Gate) -> dict[tuple[str, str], tuple[Any, Question]]:
    """The unary calls that are answered, by service and method: type of the request, and the answer."""

    async def live(request: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ready(request: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=gate.is_ready)

    async def health(request: Any) -> Any:
        status = health_of(gate, request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise CallError(grpc.StatusCode.NOT_FOUND, "This service is not known here; ask for the empty name.")
        return health_pb2.HealthCheckResponse(status=status)

    def of_model(ask: Callable[[Gate, str, str], Awaitable[Any]]) -> Question:
        return lambda request: ask(gate, served_name(request.name), request.version)

    async def model_ready(request: Any) -> Any:
        is_ready = await public.model_ready(gate, served_name(request.name), request.version)
        return service_pb2.ModelReadyResponse(ready=is_ready)

    triton = {
        "ServerLive": (service_pb2.ServerLiveRequest, live),
        "ServerReady": (service_pb2.ServerReadyRequest, ready),
        "ModelReady": (service_pb2.ModelReadyRequest, model_ready),
        "ServerMetadata": (service_pb2.ServerMetadataRequest, lambda request: public.server_metadata(gate)),
        "ModelMetadata": (service_pb2.ModelMetadataRequest, of_model(public.model_metadata)),
        "ModelConfig": (service_pb2.ModelConfigRequest, of_model(public.model_config)),
        "ModelStatistics": (service_pb2.ModelStatisticsRequest, of_model(public.statistics)),
    }
    asked: dict[tuple[str, str], tuple[Any, Question]] = {(SERVICE, method): question for method, question in triton.items()}
    asked[HEALTH, "Check"] = health_pb2.HealthCheckRequest, health
    return asked


def health_of(gate: Gate, service: str) -> int:
    """A status of gRPC's health protocol. service: empty, or Triton's; others are unknown."""
    known = health_pb2.HealthCheckResponse
    if service not in ("", SERVICE):
        return int(known.SERVICE_UNKNOWN)
    return int(known.SERVING if gate.is_ready else known.NOT_SERVING)


def parsed(request_type: Any, data: bytes) -> Any:
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise InvalidInputError(f"The message is no {request_type.DESCRIPTOR.name}; send one of the protocol's.") from None
