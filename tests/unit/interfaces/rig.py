"""The interfaces on real sockets in this process, before a server whose speech is as long as its text."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from tritonclient.grpc import service_pb2

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.voices import ListedVoice, format_voices
from gateway.keys import Keys
from interfaces.__main__ import _config
from interfaces.core.lexicons import Lexicons
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.voice import Voice
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits, Settings
from interfaces.web.access import Access
from interfaces.web.app import make_app
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER as SAMPLES_PER_CHARACTER
from tests.unit.client.fake_server import Behaviour, FakeServer, Reader, Stream, decode

START_TIMEOUT_S = 120.0
ANNA = Voice("anna", "anna", speaker_id="anna")


@dataclass
class Running:
    """A server process's worth of objects. Use ``service`` only from tests that know it runs in another thread."""

    port: int
    service: SpeechService
    access: Access
    loop: asyncio.AbstractEventLoop
    server: uvicorn.Server = field(repr=False)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@contextlib.contextmanager
def running(
    *addresses: str,
    limits: InterfaceLimits | None = None,
    keys: Keys | None = None,
    voices: VoiceStore | None = None,
    speak_after_s: float = 0.0,
    origins: tuple[str, ...] = (),
    settings: Settings | None = None,
    lexicons: Lexicons | None = None,
) -> Iterator[Running]:
    limits = limits or InterfaceLimits()
    if limits.starts_per_second == InterfaceLimits.starts_per_second:  # else how fast a test is would decide
        limits = replace(limits, starts_per_second=0)
    made: list[Running] = []
    started = threading.Event()

    async def serve() -> None:
        servers = Servers(addresses)
        await servers.check()
        store = voices or VoiceStore((ANNA,), limits=limits)
        service = SpeechService(servers, store, limits, speak_after_s, lexicons=lexicons)
        access = Access(
            keys, limits, origins, () if settings is None else settings.allowed_hosts, settings is not None and settings.behind_proxy
        )
        config = _config(replace(settings or Settings(port=0), limits=limits), make_app(service, access, limits, origins))
        config.port = 0
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            assert not serving.done(), "the server has ended"
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        made.append(Running(port, service, access, asyncio.get_running_loop(), server))
        started.set()
        await serving
        await servers.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(START_TIMEOUT_S)
    try:
        yield made[0]
    finally:
        made[0].server.should_exit = True
        thread.join(START_TIMEOUT_S)


class ReadyServer(FakeServer):
    """voices: None: as of earlier servers, which list none."""

    voices: Sequence[ListedVoice] | None = None
    listing: bytes | None = None  # in place of ``voices``

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name == COSYVOICE2_BISTREAM.name)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = super().ModelConfig(request, context)
        if self.voices is not None:
            answer.config.input.add(name="is_voice_list", data_type="TYPE_BOOL", dims=[1, 1])
        return answer

    def _read(self, requests: Iterator[Any], stream: Stream) -> None:
        super()._read(self._without_lists(requests, stream), stream)

    def _without_lists(self, requests: Iterator[Any], stream: Stream) -> Iterator[Any]:
        for request in requests:
            if "is_voice_list" not in decode(request).inputs:
                yield request
                continue
            data = self.listing or format_voices(self.voices or ())
            answer = service_pb2.ModelStreamInferResponse()
            answer.infer_response.outputs.add(name="voices", datatype="BYTES", shape=[1, 1])
            answer.infer_response.raw_output_contents.append(len(data).to_bytes(4, "little") + data)
            answer.infer_response.parameters["triton_final_response"].bool_param = True
            stream.responses.put(answer)


@contextlib.contextmanager
def reading(behave: Behaviour | None = None) -> Iterator[ReadyServer]:
    """behave: in place of reading every text aloud."""
    server = ReadyServer(behave or Reader())
    try:
        yield server
    finally:
        server.stop()
