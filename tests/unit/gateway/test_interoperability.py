"""The gate's HTTP/2 with the real clients: sizes around every limit, many streams, deadlines, status texts, and a server that goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from gateway.acceptor import Acceptor
from gateway.budget import Budget
from gateway.grpc_door import REQUESTS_PER_TURN, GrpcDoor
from gateway.http2.server import CallError, Http2Server, ServerCall, ServerSettings
from gateway.listening import listening_socket
from gateway.settings import Limits
from tests.ports import port
from tests.unit.gateway.fakes import House, run
from tests.unit.gateway.requests import OFFLINE, message
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

MIB = 1024 * 1024
SIZES = (0, 1, 16_378, 16_379, 16_380, 32_763, 65_529, 65_530, 65_531, 200_000, 5 * MIB)
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
WORDS = "100 % sure: zwölf, 再见 \U0001f600\tend"


async def handle(call: ServerCall) -> None:
    """``Echo``, ``Sum`` of the bytes that came, ``Fail``, and ``Hang``."""
    name = call.path.rpartition("/")[2]
    if name == "FailLong":
        raise CallError(grpc.StatusCode.INTERNAL, 30_000 * "\U0001f600" + "\ud800")
    if name == "Fail":
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, WORDS)
    if name == "Hang":
        await asyncio.get_running_loop().create_future()
    size = 0
    while (data := await call.read()) is not None:
        size += len(data)
        if name == "Echo":
            await call.write(data)
    if name == "Sum":
        await call.write(str(size).encode())


class EchoServer:
    """In a thread of its own. A context."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.server = Http2Server(handle, ServerSettings(400, 0, 1000, 6 * MIB, ""), Budget(512 * MIB))
        acceptor = Acceptor(listening_socket("127.0.0.1", self._port, "test"), self.server.connection, None, Limits())
        self.port = acceptor.port
        self._started.set()
        await self._end.wait()
        acceptor.stop()
        await self.server.stop(0.0, "SHUTTING_DOWN: Gone.")

    def __enter__(self) -> EchoServer:
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive() and self.server.calls == 0

    def channel(self, *options: tuple[str, Any], **more: Any) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=[*UNLIMITED, *options], **more)


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with EchoServer() as made:
        yield made


@pytest.mark.parametrize("frame", [16_384, 1_000_000])
def test_messages_of_every_size_come_back(server: EchoServer, frame: int) -> None:
    with server.channel(("grpc.http2.max_frame_size", frame), ("grpc.http2.lookahead_bytes", 65_536)) as channel:
        sent = [bytes([number]) * size for number, size in enumerate(SIZES)]
        assert list(channel.stream_stream("/x/Echo")(iter(sent), timeout=TIMEOUT_S)) == sent
        for data in sent:
            assert channel.unary_unary("/x/Echo")(data, timeout=TIMEOUT_S) == data


def test_many_streams_of_one_connection_beside_each_other(server: EchoServer) -> None:
    with server.channel() as channel, ThreadPoolExecutor(40) as pool:

        def speak(number: int) -> bool:
            sent = [bytes([number]) * (number * 997 % 50_000) for _ in range(12)]
            return list(channel.stream_stream("/x/Echo")(iter(sent), timeout=TIMEOUT_S)) == sent

        assert all(pool.map(speak, range(120)))


def test_the_asynchronous_client(server: EchoServer) -> None:
    async def speak(channel: Any, number: int) -> bool:
        call = channel.stream_stream("/x/Echo")()
        came = []
        for index in range(10):
            await call.write(bytes([number]) * (index * 9000))
            came.append(await call.read())
        await call.done_writing()
        return await call.read() is grpc.aio.EOF and [len(data) for data in came] == [index * 9000 for index in range(10)]

    async def test() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=UNLIMITED) as channel:
            assert all(await asyncio.gather(*(speak(channel, number) for number in range(60))))

    asyncio.run(test())


def test_an_upload_of_50_megabytes_in_one_stream(server: EchoServer) -> None:
    with server.channel() as channel:
        pieces = (bytes(100_000 + number) for number in range(500))
        assert channel.stream_unary("/x/Sum")(pieces, timeout=240) == str(sum(100_000 + number for number in range(500))).encode()


def test_a_status_keeps_its_words(server: EchoServer) -> None:
    with server.channel() as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/x/Fail")(b"", timeout=TIMEOUT_S)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, WORDS)


def test_a_status_of_too_many_words_is_cut(server: EchoServer) -> None:
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/x/FailLong")(b"", timeout=TIMEOUT_S)
        assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.INTERNAL, 512 * "\U0001f600")


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_not_implemented(server: EchoServer, how: grpc.Compression) -> None:
    with server.channel(compression=how) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/x/Echo")(bytes(10_000), timeout=TIMEOUT_S)
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_deadline_and_a_cancel_end_the_handler(server: EchoServer) -> None:
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/x/Hang")(b"", timeout=0.05)
        assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        hanging = channel.unary_unary("/x/Hang").future(b"")
        hanging.cancel()
        assert channel.unary_unary("/x/Echo")(b"x", timeout=TIMEOUT_S) == b"x"


def test_metadata_up_to_the_limit(server: EchoServer) -> None:
    with server.channel() as channel:
        echo = channel.unary_unary("/x/Echo")
        large = tuple((f"x-{number}", 900 * "v") for number in range(12))
        assert echo(b"x", metadata=(*large, ("x-bin", bytes(range(256)))), timeout=TIMEOUT_S) == b"x"
        with pytest.raises(grpc.RpcError):
            echo(b"x", metadata=tuple((f"x-{number}", 900 * "v") for number in range(30)), timeout=TIMEOUT_S)
        assert echo(b"x", timeout=TIMEOUT_S) == b"x"


def test_pings_of_a_client_are_welcome(server: EchoServer) -> None:
    """Far more than the 10 s that clients keep alive with: no GOAWAY for them."""
    options = (("grpc.keepalive_time_ms", 10), ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0))
    with server.channel(*options) as channel:
        for number in range(200):
            assert channel.unary_unary("/x/Echo")(b"x", timeout=TIMEOUT_S) == b"x", number


def test_a_client_finds_the_server_again_after_its_goaway() -> None:
    with EchoServer(port()) as first, first.channel() as channel:
        echo = channel.unary_unary("/x/Echo")
        assert echo(b"x", timeout=TIMEOUT_S) == b"x"
        hanging = channel.stream_stream("/x/Echo")(iter([b"a"]))
        assert next(hanging) == b"a"
        first.__exit__()
        with EchoServer(first.port):
            assert echo(b"y", timeout=TIMEOUT_S, wait_for_ready=True) == b"y"


def test_a_refusal_of_many_words_by_the_server_leaves_other_sessions_alone() -> None:
    """They come as trailers on the connection that all sessions share: were it lost, so were they."""
    with GateRig() as rig:
        channel, stub = rig.stub()
        with channel:
            for size in (1000, 8000, 20_000, 100_000):
                rig.server.refusal = size * "w"
                with pytest.raises(grpc.RpcError):
                    stub.ModelInfer(message(OFFLINE, target_text="x"), timeout=TIMEOUT_S)
                assert rig.gate.is_ready
            rig.server.refusal = None
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=TIMEOUT_S).ready


def test_requests_that_came_together_leave_turns_to_others() -> None:
    """A window of empty messages is some 13,000 refusals: the event loop must see to others between them."""

    class Call:
        def __init__(self) -> None:
            self.left = 80

        async def read(self) -> bytes | None:
            self.left -= 1
            return b"\xff" if self.left >= 0 else None

    async def test() -> None:
        house = House(Limits(max_unanswered=1000))
        conversation, turns = house.client(), 0

        async def other() -> None:
            nonlocal turns
            while not reading.done():
                turns += 1
                await asyncio.sleep(0)

        reading = asyncio.create_task(GrpcDoor(house.gate)._read(conversation, Call()))  # type: ignore[arg-type]
        await other()
        assert turns >= 80 // REQUESTS_PER_TURN
        conversation.close()

    run(test)
