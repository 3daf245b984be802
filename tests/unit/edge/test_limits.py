"""The limits of the edge, one by one, with the words that a refused client hears."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gateway.settings import TlsSettings
from tests.triton.conftest import wait_for
from tests.unit.edge.gate import STREAM, UNARY
from tests.unit.edge.http2 import Connection, Kind, frame, head
from tests.unit.edge.rig import LOOPBACK, PATIENCE_S, PAUSE_S, PIECE, Edge
from tests.unit.gateway.rig import certificate

TOO_LONG = "INVALID_INPUT: The headers of this call have more than 16384 bytes; send fewer."
STOP = "stop_accepting_requests\n      triggers: [{name: envoy.resource_monitors.fixed_heap, threshold: {value"
FULL = "BUSY: The server has no memory left for more calls; try again in a few seconds."
NOT_UNDERSTOOD = "INVALID_INPUT: This is not a request that a server here understands."
Answer = tuple[int, str]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with Edge(tmp_path_factory.mktemp("edge")) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """The same with time limits of a second."""
    times = dict.fromkeys(("idle_timeout", "request_headers_timeout", "request_timeout", "transport_socket_connect_timeout"), "1s")
    folder = tmp_path_factory.mktemp("edge")
    files = certificate(folder)
    with Edge(folder, TlsSettings(files.certificate, files.private_key), **times) as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """It has few connections, and closes those without a call after a second."""
    with Edge(
        tmp_path_factory.mktemp("edge"), idle_timeout="1s", request_headers_timeout="1s", max_active_downstream_connections="50"
    ) as made:
        yield made


async def talk(connection: Connection, stream: int, times: int) -> bool:
    """Whether the stream answers for the ``times``-th time."""
    connection.say(stream, PIECE)
    size = times * (len(PIECE) + 5)
    return len(await asyncio.wait_for(connection.answers(stream, size), PATIENCE_S)) == size


def get(edge: Edge, path: str, headers: dict[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection(LOOPBACK, edge.http_port, timeout=PATIENCE_S, source_address=("127.0.0.7", 0))
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


FORGED = {"x-client-address": "6.6.6.6", "x-forwarded-for": "7.7.7.7", "x_client_address": "8.8.8.8", "forwarded": "for=9.9.9.9"}


def test_no_client_chooses_its_address(edge: Edge) -> None:
    async def told() -> bytes:
        connection = await Connection.open(edge.grpc_port, "127.0.0.7")
        stream = connection.call(UNARY, FORGED.items())
        await asyncio.wait_for(connection.end_of(stream), PATIENCE_S)
        await connection.close()
        return bytes(connection.received[stream][5:])

    assert asyncio.run(told()) == b"127.0.0.7"
    status, body = get(edge, "/v2", FORGED)
    assert status == 200 and json.loads(body) == ["/v2", ["127.0.0.7"]]


@pytest.mark.parametrize("kilobytes", [17, 60])
def test_long_headers_cost_their_call_alone(kilobytes: int, edge: Edge) -> None:
    with grpc.insecure_channel(f"{LOOPBACK}:{edge.grpc_port}") as channel:
        live = channel.stream_stream(STREAM)(iter([PIECE]))
        assert next(live) == PIECE
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(UNARY)(b"", metadata=[("x-long", "a" * (1000 * kilobytes))])
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, TOO_LONG)
        assert channel.unary_unary(UNARY)(b"") == b"127.0.0.1"
    status, body = get(edge, "/v2", {"x-long": "a" * (1000 * kilobytes)})
    assert status == 431 and json.loads(body) == {"error": TOO_LONG}


def test_a_wrong_call_costs_its_stream_alone(edge: Edge) -> None:
    async def attempt() -> None:
        connection = await Connection.open(edge.grpc_port, "127.0.0.7")
        live = connection.begin()
        assert await talk(connection, live, 1)
        for extra in ([("Upper-Case", "x")], [("connection", "close")], [("x-big", "a" * 60_000)] * 3, [(":unknown", "x")]):
            ended = await asyncio.wait_for(connection.end_of(connection.call(UNARY, extra)), PATIENCE_S)
            assert ended is not None and connection.is_open, extra
        assert await talk(connection, live, 2)
        await connection.close()

    asyncio.run(attempt())


@pytest.mark.parametrize("path", ["/metrics", "/%6detrics", "/v2/../metrics", "//metrics", "/metrics?x=1", "/./metrics"])
def test_no_spelling_reaches_the_metrics(path: str, edge: Edge) -> None:
    status, body = get(edge, path)
    assert status == 404 and json.loads(body)["error"].startswith("NOT_SERVED: ")


@pytest.mark.parametrize("path", ["/v2/..%2fmetrics", "/v2/..%5cmetrics", "/v2%00"])
def test_paths_that_mean_something_else_to_others_are_refused(path: str, edge: Edge) -> None:
    status, body = get(edge, path)
    assert status == 400 and json.loads(body) == {"error": NOT_UNDERSTOOD}


def test_an_address_that_begins_too_many_calls_is_told_so_and_no_other(edge: Edge) -> None:
    async def flood() -> None:
        connection = await Connection.open(edge.grpc_port, "127.0.0.20")
        limited = edge.stat("http_local_rate_limit.rate_limited")
        while edge.stat("http_local_rate_limit.rate_limited") == limited:
            await asyncio.gather(*(connection.end_of(connection.call(UNARY)) for _ in range(500)))
        other = await Connection.open(edge.grpc_port, "127.0.0.21")
        assert await talk(other, other.begin(), 1)
        for each in (connection, other):
            await each.close()

    asyncio.run(flood())


def test_what_is_said_when_the_memory_is_full(tmp_path: Path) -> None:
    with Edge(tmp_path, None, **{STOP: "0.0001"}) as edge:
        wait_for(lambda: edge.stat("stop_accepting_requests.active") == 1, "Envoy to notice how much it holds")
        status, body = get(edge, "/v2")
        assert status == 503 and json.loads(body) == {"error": FULL}


def test_a_connection_without_a_call_is_closed(small: Edge) -> None:
    """Whether it has sent nothing, half a head or a ping."""

    async def hold(edge: Edge) -> None:
        busy, *idle = [await Connection.open(edge.grpc_port, "127.0.0.7") for _ in range(4)]
        live = busy.begin()
        assert await talk(busy, live, 1)
        for each, sent in zip(idle, (b"", head(1)[:40], frame(Kind.PING, 0, 0, bytes(8))), strict=True):
            each.writer.write(sent)
        await asyncio.wait_for(asyncio.gather(*(each.task for each in idle)), PATIENCE_S)
        assert await talk(busy, live, 2)
        await busy.close()

    asyncio.run(hold(small))


def test_when_the_memory_fills_connections_without_a_call_close_first(tmp_path: Path) -> None:
    async def hold(edge: Edge) -> None:
        busy, idle = [await Connection.open(edge.grpc_port, "127.0.0.7") for _ in range(2)]
        live = busy.begin()
        assert await talk(busy, live, 1)
        await asyncio.wait_for(idle.task, PATIENCE_S)  # long before the hour is over
        assert await talk(busy, live, 2)
        await busy.close()

    with Edge(tmp_path, idle_timeout="3600s", min_timeout="0.1s", scaling_threshold="0.0", saturation_threshold="0.0001") as edge:
        asyncio.run(hold(edge))


def test_when_all_connections_are_taken_a_place_is_free_soon(small: Edge) -> None:
    async def fill(edge: Edge) -> None:
        busy = await Connection.open(edge.grpc_port, "127.0.0.7")
        live = busy.begin()
        assert await talk(busy, live, 1)
        crowd = [await Connection.open(edge.grpc_port, f"127.0.0.{number % 2 + 2}") for number in range(100)]
        for each in crowd:
            await asyncio.wait_for(each.end_of(each.call(UNARY)), PATIENCE_S)
        while True:
            newcomer = await Connection.open(edge.grpc_port, "127.0.0.30")
            if await talk(newcomer, newcomer.begin(), 1):
                break
            await asyncio.sleep(PAUSE_S)
        assert await talk(busy, live, 2)
        for each in (busy, newcomer, *crowd):
            await each.close()

    asyncio.run(fill(small))


def test_a_stalled_handshake_is_ended_and_others_are_served(impatient: Edge) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(socket.create_connection((LOOPBACK, impatient.grpc_port), PATIENCE_S)) for _ in range(100)]
        for each in stalled[::2]:
            each.send(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a greeting
        with socket.create_connection((LOOPBACK, impatient.grpc_port)) as plain, context.wrap_socket(plain) as secure:
            assert secure.selected_alpn_protocol() == "h2"
        assert all(each.recv(1) == b"" for each in stalled)


def test_half_a_request_is_ended(impatient: Edge) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        peers = []
        for sent in (b"POST /v2 HTTP/1.1\r\nhost: a\r\n", b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"):
            plain = stack.enter_context(socket.create_connection((LOOPBACK, impatient.http_port), PATIENCE_S))
            peers.append(stack.enter_context(context.wrap_socket(plain)))
            peers[-1].sendall(sent)
        for peer in peers:
            answer = b"".join(iter(functools.partial(peer.recv, 65_536), b""))
            assert answer.startswith(b"HTTP/1.1 408 ") and b"INVALID_INPUT: The request did not arrive in time" in answer


def test_frames_without_content_end_their_connection(edge: Edge) -> None:
    async def send() -> None:
        connection = await Connection.open(edge.grpc_port, "127.0.0.7")
        connection.writer.write(frame(Kind.DATA, 0, connection.begin()) * 10)
        await asyncio.wait_for(connection.task, PATIENCE_S)

    asyncio.run(send())
    wait_for(lambda: edge.stat("http2.inbound_empty_frames_flood") == 1, "Envoy to have counted it")


@pytest.mark.slow
@pytest.mark.parametrize("age_s", [0.5, 9.0])  # before the first ping of a connection, and in the midst of one
def test_a_session_survives_that_the_gate_or_envoy_stands_still_for_12_s(age_s: float, edge: Edge) -> None:
    async def stop() -> None:
        caller = await Connection.open(edge.grpc_port, "127.0.0.7")
        stream = caller.begin()
        assert await talk(caller, stream, 1)
        for times, process in enumerate((edge.gate, edge.envoy), 2):
            await asyncio.sleep(age_s)
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(12.0)
            process.send_signal(signal.SIGCONT)
            assert await talk(caller, stream, times)
        await caller.close()

    asyncio.run(stop())
