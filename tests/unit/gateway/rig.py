"""A whole gate in a thread of this process, in front of a gRPC server that plays Triton: the doors are tested from outside."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.gate import Gate
from gateway.grpc_server import GrpcServer
from gateway.http_api import HttpApi
from gateway.keys import Keys
from gateway.settings import GateLimits, GateSettings, TlsSettings, UpstreamSettings
from gateway.upstream import Upstream
from tests.unit.client.fake_server import Behaviour, FakeServer, Speakers

TIMEOUT_S = 120.0


class FakeTriton(FakeServer):
    """metadata: what came with every stream. missing: models that it does not have. Unary inference says the text back as samples, or
    ``refusal`` as an error."""

    def __init__(self, behave: Behaviour, port: int = 0) -> None:
        self.metadata: list[dict[str, Any]] = []
        self.unary_requests: list[Any] = []
        self.refusal: str | None = None
        self.is_decoupled = False
        self.missing: set[str] = set()
        super().__init__(behave, port)

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        self.metadata.append(dict(context.invocation_metadata()))
        yield from super().ModelStreamInfer(request_iterator, context)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name not in self.missing)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(
            name="triton", version="2.51.0", extensions=["statistics", "system_shared_memory", "trace"]
        )

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelMetadataResponse(name=request.name, versions=["1"])
        for name in ("calls", "target_text"):
            answer.inputs.add(name=name, datatype="BYTES", shape=[1, 1])
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        answer.config.parameters["model_dir"].string_value = "/srv/secret"
        answer.config.parameters["model_family"].string_value = "cosyvoice2"
        answer.config.parameters["languages"].string_value = "de,en"
        answer.config.parameters["can_be_instructed"].string_value = "false"
        answer.config.parameters["max_text_chars"].string_value = "4000"
        answer.config.parameters["sample_rate"].string_value = "24000"
        answer.config.parameters["tokens_per_second"].string_value = "25"
        answer.config.parameters["max_sessions"].string_value = "96"
        answer.config.parameters["reserved_speech_s"].string_value = "7.0"
        answer.config.default_model_filename = "model.py"
        answer.config.model_transaction_policy.decoupled = request.name == "cosyvoice2_bistream"
        for name in ("calls", "target_text"):
            answer.config.input.add(name=name, data_type="TYPE_STRING", dims=[1, 1])
        return answer

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        names = [request.name] if request.name else ["cosyvoice2", "llm_bistream", "cosyvoice2_bistream"]
        return service_pb2.ModelStatisticsResponse(model_stats=[{"name": name, "inference_count": 3} for name in names])

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.unary_requests.append(request)
        if self.is_decoupled:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled transaction policy")
        if self.refusal is not None:
            context.abort(grpc.StatusCode.INTERNAL, self.refusal)
        values = {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
        samples = np.frombuffer(values["target_text"][4:], np.uint8).astype(np.float32) / 256
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        answer.outputs.add(name="waveform", datatype="FP32", shape=[samples.size])
        answer.raw_output_contents.append(samples.tobytes())
        return answer


class GateRig:
    """A context: the gate and the server behind it. ``server`` may be stopped by the test."""

    def __init__(
        self,
        behave: Behaviour | None = None,
        limits: GateLimits | None = None,
        keys: Keys | None = None,
        tls: TlsSettings | None = None,
        behind_proxy: bool = False,
    ) -> None:
        self.server = FakeTriton(behave or Speakers())
        upstream = UpstreamSettings(self.server.address, poll_interval_s=0.05, poll_timeout_s=TIMEOUT_S)
        self._settings = GateSettings(upstream, limits or GateLimits(), behind_proxy=behind_proxy)
        self._keys = keys
        self._tls = tls
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)
        self.gate: Gate

    def __enter__(self) -> GateRig:
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        self.wait_for(lambda: self.gate.upstream.is_ready)
        return self

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        upstream = Upstream(self._settings.upstream)
        self.gate = Gate(self._settings, upstream, self._keys)
        tasks = [asyncio.create_task(upstream.watch()), asyncio.create_task(self.gate.run())]
        grpc_server, http_api = GrpcServer(self.gate), HttpApi(self.gate)
        self.grpc_server = grpc_server
        await grpc_server.start("127.0.0.1", 0, self._tls)
        await http_api.start("127.0.0.1", 0, self._tls)
        self.grpc_url, self.http_url = f"127.0.0.1:{grpc_server.port}", f"127.0.0.1:{http_api.port}"
        self.grpc_port = grpc_server.port
        self._started.set()
        await self._end.wait()
        await grpc_server.stop(0.0)
        await http_api.stop(0.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.gate.close()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something holds of the gate, asked in its own loop."""

        async def poll() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.run(poll())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Something to do in the gate's own loop."""
        self.begin(work).result(TIMEOUT_S)

    def begin(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Likewise; its end is not waited for."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stub(self) -> tuple[Any, Any]:
        """(channel, raw stub) of a client."""
        channel = grpc.insecure_channel(
            self.grpc_url, options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        )
        return channel, service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self.server.stop()


def certificate(folder: Path) -> TlsSettings:
    """A certificate for 127.0.0.1 that is its own authority."""
    subject = ["-subj", "/CN=gate", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run([*command, "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True)
    return TlsSettings(*files)
