"""The gRPC door before gRPC's own clients: sizes, many calls, metadata, pings, half calls, health, and a proxy's word on addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from gateway import grpc_call
from gateway.grpc_call import CallError, peer_host
from gateway.keys import Keys
from gateway.settings import GateLimits
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.requests import OFFLINE, message
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

SERVICE = "/inference.GRPCInferenceService"
KEY = "k" * 16
LIVE = service_pb2.ServerLiveRequest().SerializeToString()
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig(Speakers()) as made:
        yield made
        made.wait_for(lambda: made.gate.admission.calls == made.gate.admission.sessions == 0)


def beside(rig: GateRig, test: Callable[[Any], Awaitable[None]], *options: tuple[str, Any], **more: Any) -> None:
    """Run ``test`` with a channel to the gate."""

    async def run() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S), grpc.aio.insecure_channel(rig.grpc_url, [*UNLIMITED, *options], **more) as channel:
            await test(channel)

    asyncio.run(run())


def stream(channel: Any, **more: Any) -> Any:
    return channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(**more)


async def live(channel: Any, **more: Any) -> bool:
    return bool(await channel.unary_unary(f"{SERVICE}/ServerLive")(LIVE, timeout=TIMEOUT_S, **more))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call, and its words; its messages are read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), await call.details() or ""


def test_bytes_that_are_no_message_are_wrong_input(rig: GateRig) -> None:
    async def test(channel: Any) -> None:
        for method in ("ModelInfer", "ModelReady"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(f"{SERVICE}/{method}")(b"\xff\xff", timeout=TIMEOUT_S)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert (refused.value.details() or "").startswith("INVALID_INPUT: ")

    beside(rig, test)


def test_a_message_over_the_limit_ends_its_own_call(rig: GateRig) -> None:
    async def test(channel: Any) -> None:
        infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
        largest, larger = (message(OFFLINE, target_text="x", reference_wav=[0.0] * size) for size in (960_000, 2_000_000))
        assert await infer(largest.SerializeToString(), timeout=TIMEOUT_S)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(larger.SerializeToString(), timeout=TIMEOUT_S)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await live(channel)

    beside(rig, test)


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_not_implemented(rig: GateRig, how: grpc.Compression) -> None:
    async def test(channel: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(f"{SERVICE}/ModelInfer")(bytes(10_000), timeout=TIMEOUT_S)
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED

    beside(rig, test, compression=how)


def test_a_message_that_does_not_come_is_not_waited_for(rig: GateRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_call, "BODY_TIMEOUT_S", 0.05)

    async def test(channel: Any) -> None:
        for sent in (0, 1):
            call = channel.stream_stream(f"{SERVICE}/ServerLive")()
            for _ in range(sent):
                await call.write(LIVE)
            assert (await end_of(call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED

    beside(rig, test)


@pytest.mark.parametrize("count", [0, 2])
def test_a_unary_call_has_one_message(rig: GateRig, count: int) -> None:
    async def test(channel: Any) -> None:
        call = channel.stream_stream(f"{SERVICE}/ServerLive")()
        for _ in range(count):
            await call.write(LIVE)
        await call.done_writing()
        assert (await end_of(call))[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert await live(channel)

    beside(rig, test)


def test_http_1_is_not_spoken(rig: GateRig) -> None:
    """The connection ends without an answer; the next one is served."""
    host, _, port = rig.grpc_url.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as peer, contextlib.suppress(ConnectionResetError):
        peer.sendall(f"POST {SERVICE}/ServerLive HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        assert not b"".join(iter(lambda: peer.recv(1000), b"")).startswith(b"HTTP/1.1 2")
    beside(rig, is_live)


async def is_live(channel: Any) -> None:
    assert await live(channel)


def test_words_of_a_status_are_cut_and_always_utf_8() -> None:
    assert CallError(grpc.StatusCode.INTERNAL, 30_000 * "\U0001f600").details == 512 * "\U0001f600"
    assert CallError(grpc.StatusCode.INTERNAL, "a\ud800").details == "a?"


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


# Health


def test_grpcs_own_health_protocol_is_answered_without_a_key() -> None:
    with GateRig(keys=Keys({KEY: "anna"})) as rig:

        async def test(channel: Any) -> None:
            stub = health_pb2_grpc.HealthStub(channel)
            for name in ("", "inference.GRPCInferenceService"):
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.Check(health_pb2.HealthCheckRequest(service="llm_bistream"))
            assert failed.value.code() == grpc.StatusCode.NOT_FOUND
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="llm_bistream"))
            assert (await unknown.read()).status == UNKNOWN
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            rig.gate.is_draining = True
            assert (await watch.read()).status == NOT_SERVING
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
            unknown.cancel()
            watch.cancel()

        beside(rig, test)
        rig.wait_for(lambda: rig.gate.admission.calls == 0)


def test_questions_about_the_health_take_no_stream_from_others_at_the_address() -> None:
    with GateRig(limits=GateLimits(streams_per_address=2)) as rig:

        async def test(channel: Any) -> None:
            watches = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
            for watch in watches:
                await watch.read()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await live(channel)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "BUSY" in str(refused.value.details())
            speaking = stream(channel)
            await speaking.write(message(target_text="x", is_end=True).SerializeToString())
            assert await speaking.read() is not grpc.aio.EOF
            for call in (*watches, speaking):
                call.cancel()

        beside(rig, test)


# Addresses


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.1:4711", "10.0.0.1"), ("ipv6:%5B::1%5D:4711", "::1"), ("ipv6:[2001:db8::2]:1", "2001:db8::2"), ("unix:", "")],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert peer_host(peer) == host


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_a_proxys_word_on_the_address_counts_only_behind_one(behind_proxy: bool) -> None:
    with GateRig(limits=GateLimits(streams_per_address=1), behind_proxy=behind_proxy) as rig:

        async def test(channel: Any) -> None:
            calls = [stream(channel, metadata=(("x-client-address", f"10.0.0.{number}"),)) for number in range(3)]
            await until(lambda: rig.gate.admission.calls == (3 if behind_proxy else 1))
            same = stream(channel, metadata=(("x-client-address", "10.0.0.1"),))
            assert "BUSY" in (await end_of(same))[1]
            for call in calls:
                call.cancel()

        beside(rig, test)
