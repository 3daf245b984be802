"""What the gate tells about the server and its public models, over any protocol: Triton's answers without what is not public."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from bistream.errors import NotServedError
from gateway.gate import Gate
from gateway.requests import PUBLIC, not_served

# Of Triton's extensions, those that the gate lets through.
EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")
# Fields of a model's configuration that clients may see, and parameters: others hold paths of the server.
_CONFIG_FIELDS = ("name", "platform", "backend", "max_batch_size", "input", "output", "model_transaction_policy", "parameters")
_CONFIG_PARAMETERS = frozenset(
    "model_family languages can_be_instructed max_text_chars sample_rate tokens_per_second text_unit max_sessions reserved_speech_s".split()
)


async def check_public(gate: Gate, model: str, version: str = "") -> None:
    """Raises ``NotServedError``."""
    if model not in PUBLIC or (PUBLIC[model].family and not await gate.upstream.is_model_ready(model)):
        raise NotServedError(not_served(model).sentence)
    if version not in ("", "1"):
        raise NotServedError(f"Model {model} has version 1 only; leave the version out.")


async def server_metadata(gate: Gate) -> Any:
    answer = await gate.upstream.ask("ServerMetadata", service_pb2.ServerMetadataRequest(), service_pb2.ServerMetadataResponse)
    served = [name for name in answer.extensions if name in EXTENSIONS]
    return service_pb2.ServerMetadataResponse(name=answer.name, version=answer.version, extensions=served)


async def model_ready(gate: Gate, model: str, version: str = "") -> bool:
    if model not in PUBLIC or version not in ("", "1") or not gate.is_ready:
        return False
    return await gate.upstream.is_model_ready(model)


async def model_metadata(gate: Gate, model: str, version: str = "") -> Any:
    await check_public(gate, model, version)
    request = service_pb2.ModelMetadataRequest(name=model)
    answer = await gate.upstream.ask("ModelMetadata", request, service_pb2.ModelMetadataResponse)
    _keep_public(model, answer.inputs, answer.outputs)
    return answer


async def model_config(gate: Gate, model: str, version: str = "") -> Any:
    await check_public(gate, model, version)
    request = service_pb2.ModelConfigRequest(name=model)
    answer = await gate.upstream.ask("ModelConfig", request, service_pb2.ModelConfigResponse)
    for field, _ in answer.config.ListFields():
        if field.name not in _CONFIG_FIELDS:
            answer.config.ClearField(field.name)
    for name in set(answer.config.parameters) - _CONFIG_PARAMETERS:
        del answer.config.parameters[name]
    _keep_public(model, answer.config.input, answer.config.output)
    return answer


def _keep_public(model: str, *tensors: Any) -> None:
    """Without those that models send each other."""
    known = {field.name for field in (*PUBLIC[model].inputs, *PUBLIC[model].outputs)}
    for described in tensors:
        for index in reversed(range(len(described))):
            if described[index].name not in known:
                del described[index]


async def statistics(gate: Gate, model: str, version: str = "") -> Any:
    """Of one public model, or of all when ``model`` is empty."""
    if model:
        await check_public(gate, model, version)
    request = service_pb2.ModelStatisticsRequest(name=model)
    answer = await gate.upstream.ask("ModelStatistics", request, service_pb2.ModelStatisticsResponse)
    return service_pb2.ModelStatisticsResponse(model_stats=[stats for stats in answer.model_stats if stats.name in PUBLIC])
