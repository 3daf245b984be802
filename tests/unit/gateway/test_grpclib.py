"""The gRPC door before a client that shares nothing with grpc's own: grpclib, Python's HTTP/2 library ``h2`` underneath, over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from grpclib import GRPCError, Status
from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.exceptions import StreamTerminatedError
from tritonclient.grpc import service_pb2

from gateway.settings import GateLimits, TlsSettings
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.requests import message
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton, GateRig, certificate
from tests.unit.gateway.test_process import Process

SERVICE = "/inference.GRPCInferenceService"
LIVE = f"{SERVICE}/ServerLive"
MANY = 100


def keepalive(interval_s: float) -> Configuration:
    """Pings at this interval, with calls and without."""
    return Configuration(
        _keepalive_time=interval_s,
        _keepalive_permit_without_calls=True,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=interval_s / 2,
    )


class Caller:
    """One connection."""

    def __init__(self, port: int, tls: TlsSettings, config: Configuration | None = None) -> None:
        context = ssl.create_default_context(cafile=tls.certificate)
        context.set_alpn_protocols(["h2"])
        self.channel = Channel("127.0.0.1", port, ssl=context, config=config)
        answers = service_pb2.ModelStreamInferResponse
        self._stream = StreamStreamMethod(self.channel, f"{SERVICE}/ModelStreamInfer", service_pb2.ModelInferRequest, answers)

    @property
    def connection(self) -> Any:
        """What grpclib keeps for its connection; it makes another one when that is lost."""
        return self.channel._protocol

    async def close(self) -> None:
        """Without the end of TLS, for which asyncio would wait 30 s: grpc answers it by nothing."""
        connection = self.connection.connection
        if not connection.is_closing():
            lost = count_calls(self.connection, "connection_lost")
            connection._transport.abort()
            await until(lambda: bool(lost))
        self.channel.close()

    async def unary(self, method: str, request: Any, answer_type: Any, metadata: dict[str, str] | None = None) -> Any:
        return await UnaryUnaryMethod(self.channel, method, type(request), answer_type)(request, timeout=TIMEOUT_S, metadata=metadata)

    async def is_live(self) -> bool:
        answer = await self.unary(LIVE, service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse)
        return bool(answer.live)

    def open(self, timeout_s: float = TIMEOUT_S) -> Any:
        return self._stream.open(timeout=timeout_s)

    async def speak(self, session_id: str) -> None:
        """A session of three pieces: the second and third are sent once the audio before them has come."""
        async with self.open() as stream:
            await self.start(stream, session_id)
            await self.append(stream, session_id)
            assert (await audio(stream))[0] == 1
            await self.finish(stream, session_id, 2)

    async def start(self, stream: Any, session_id: str) -> None:
        await stream.send_message(message(request_id="start", target_text="x", session_id=session_id, is_start=True, is_end=False))
        assert (await audio(stream))[0] == 0

    async def append(self, stream: Any, session_id: str, is_end: bool = False) -> None:
        await stream.send_message(message(request_id="more", target_text="y", session_id=session_id, is_start=False, is_end=is_end))

    async def finish(self, stream: Any, session_id: str, number: int) -> None:
        """number: of the chunk that is still to come."""
        await self.append(stream, session_id, is_end=True)
        await stream.end()
        chunks = [chunk async for chunk in told(stream)]
        assert [chunk for chunk in chunks if chunk != ("more", "final")] == [("start", number), ("start", "final")]


async def told(stream: Any) -> AsyncIterator[tuple[str, Any]]:
    """(id of the request, number of the chunk, error or "final") of each response."""
    async for response in stream:
        answer = response.infer_response
        if response.error_message:
            yield answer.id, response.error_message.partition(":")[0]
        elif answer.outputs:
            yield answer.id, int.from_bytes(answer.raw_output_contents[1], "little")
        else:
            yield answer.id, "final"


async def audio(stream: Any) -> tuple[int, str]:
    """(number, id) of the next chunk."""
    async for request_id, what in told(stream):
        if isinstance(what, int):
            return what, request_id
    raise AssertionError("the stream has ended")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


class Door:
    """A gate, and how to reach it."""

    def __init__(self, rig: GateRig, tls: TlsSettings) -> None:
        self.rig = rig
        self.tls = tls

    def check(self, test: Callable[[Caller], Awaitable[None]], config: Configuration | None = None) -> None:
        """Run it with one connection, which must be the same at its end, and leave nothing behind."""

        async def run() -> None:
            async with asyncio.timeout(2 * TIMEOUT_S), calling(self.rig.grpc_port, self.tls, config) as caller:
                assert await caller.is_live()
                before = caller.connection
                await test(caller)
                assert await caller.is_live() and caller.connection is before

        asyncio.run(run())
        self.rig.wait_for(lambda: self.rig.gate.admission.calls == self.rig.gate.admission.sessions == 0)


@asynccontextmanager
async def calling(port: int, tls: TlsSettings, config: Configuration | None = None) -> AsyncIterator[Caller]:
    caller = Caller(port, tls, config)
    try:
        yield caller
    finally:
        await caller.close()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    tls = certificate(tmp_path_factory.mktemp("tls"))
    with GateRig(Speakers(), GateLimits(streams_per_address=MANY), tls=tls) as rig:
        yield Door(rig, tls)


def test_a_reset_and_a_deadline_end_a_session(door: Door) -> None:
    async def test(caller: Caller) -> None:
        async with caller.open() as stream:
            await caller.start(stream, "a")
            await stream.cancel()
        await until(lambda: door.rig.gate.admission.sessions == 0)
        with pytest.raises((asyncio.TimeoutError, GRPCError)) as ended:  # whose clock is first
            async with caller.open(timeout_s=0.2) as stream:
                await stream.send_message(message(target_text="x", session_id="a", is_start=True, is_end=False))
                async for _ in told(stream):
                    pass
        assert not isinstance(ended.value, GRPCError) or ended.value.status == Status.DEADLINE_EXCEEDED
        await until(lambda: door.rig.gate.admission.sessions == 0)

    door.check(test)


def test_a_hundred_streams_on_one_connection(door: Door) -> None:
    async def test(caller: Caller) -> None:
        await asyncio.gather(*(caller.speak(f"s{number}") for number in range(MANY)))

    door.check(test)


def test_too_much_metadata_ends_its_own_call(door: Door) -> None:
    async def test(caller: Caller) -> None:
        async with caller.open() as stream:
            await caller.start(stream, "a")
            with pytest.raises(GRPCError) as refused:
                await caller.unary(LIVE, service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse, {"x-large": "x" * 30_000})
            assert refused.value.status == Status.RESOURCE_EXHAUSTED
            await caller.finish(stream, "a", 1)

    door.check(test)


def test_pings_are_answered_as_often_as_they_come(door: Door) -> None:
    """A session that is silent meanwhile goes on, on the same connection."""

    async def test(caller: Caller) -> None:
        async with caller.open() as stream:
            await caller.start(stream, "a")
            answered = count_calls(caller.connection.connection, "ping_ack_process")
            await until(lambda: len(answered) >= 50)
            await caller.finish(stream, "a", 1)

    door.check(test, keepalive(0.02))


def count_calls(owner: Any, name: str) -> list[None]:
    """Grows with every call of this method."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counted(*arguments: Any) -> None:
        calls.append(None)
        method(*arguments)

    setattr(owner, name, counted)
    return calls


class SecureProcess(Process):
    def __init__(self, folder: Path, server: FakeTriton, tls: TlsSettings | None) -> None:
        self._tls = tls
        super().__init__(folder, server, tls=tls)

    def connect(self) -> triton.InferenceServerClient:
        certificate = None if self._tls is None else str(self._tls.certificate)
        return triton.InferenceServerClient(self.grpc_url, ssl=self._tls is not None, root_certificates=certificate)


def test_a_drain_lets_a_session_end_and_says_goodbye(tmp_path: Path) -> None:
    server = FakeTriton(Speakers())
    tls = certificate(tmp_path)

    async def test(gate: Process) -> None:
        port = int(gate.grpc_url.rpartition(":")[2])
        async with asyncio.timeout(2 * TIMEOUT_S), calling(port, tls, keepalive(0.5)) as caller:
            async with caller.open() as stream:
                await caller.start(stream, "a")
                ends = _ends(caller)
                gate.process.send_signal(signal.SIGTERM)
                await _until_refused(caller)
                await caller.append(stream, "a")
                assert await audio(stream) == (1, "start")
                assert not ends
                await caller.finish(stream, "a", 2)
            await until(lambda: bool(ends))
            assert ends[0] != "Connection lost"
            with pytest.raises((OSError, StreamTerminatedError)):  # a new connection, and nobody is there
                while await caller.is_live():
                    pass

    with SecureProcess(tmp_path, server, tls) as gate:
        fail_a_handshake(gate)
        asyncio.run(test(gate))
        assert "andshake" not in gate.check_end("draining: 1 sessions"), "anybody could fill the log"
    server.stop()


def fail_a_handshake(gate: Process) -> None:
    host, _, port = gate.grpc_url.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain:
        plain.sendall(b"no TLS at all\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(1000):  # until the gate has closed it
                pass


def _ends(caller: Caller) -> list[str]:
    """Why grpclib has closed its connection, and with it all calls: at the first GOAWAY, or at the first frame after it in one packet."""
    heard: list[str] = []
    processor = caller.connection.processor
    close, transport = processor.close, processor.connection._transport

    def on_close(reason: str = "") -> None:
        heard.append(reason)
        close(reason)
        transport.abort()  # as in ``Caller.close``

    processor.close = on_close
    return heard


async def _until_refused(caller: Caller) -> None:
    """New sessions on the same connection."""
    code = ""
    while code != "SHUTTING_DOWN":
        async with caller.open() as stream:
            await stream.send_message(message(target_text="x", is_end=True), end=True)
            code = str([end async for end in told(stream)][0][1])
