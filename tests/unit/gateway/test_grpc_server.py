"""The gRPC door from outside: real clients in front of it, a real gRPC server behind it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bistream.client.client import BistreamClient
from gateway.keys import Keys
from gateway.settings import GateLimits
from tests.unit.client.fake_server import Received, Speakers, Stream
from tests.unit.gateway.requests import BISTREAM, OFFLINE, SPARK, message
from tests.unit.gateway.rig import GateRig

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
OTHER = "cosyvoice3"
TRITON_DEADLY = (("triton_grpc_error", "true"), ("x-request-id", "1"))


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig(Speakers()) as made:
        yield made


class Client:
    """One raw stream. ``send`` bytes or messages; ``take`` responses."""

    def __init__(self, rig: GateRig, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = grpc.insecure_channel(rig.grpc_url)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method = self._channel.stream_stream(METHOD, response_deserializer=service_pb2.ModelStreamInferResponse.FromString)
        self.call = method(iter(self._requests.get, None), metadata=metadata, timeout=240)

    def send(self, request: Any) -> None:
        self._requests.put(request if isinstance(request, bytes) else request.SerializeToString())

    def take(self) -> Any:
        return next(self.call)

    def half_close(self) -> None:
        self._requests.put(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.half_close()
        self.call.cancel()
        self._channel.close()


def told(response: Any) -> tuple[str, str, bool]:
    answer = response.infer_response
    what = response.error_message or ("audio" if answer.outputs else "final")
    return answer.id, what.partition(":")[0], answer.parameters["triton_final_response"].bool_param


def test_our_client_speaks_through_the_gate(rig: GateRig) -> None:
    with BistreamClient(rig.grpc_url).start(speaker_id="anna", text="Hel", session_id="mine") as session:
        session.push_text("lo wor")
        session.end_text("ld.")
        chunks = list(session)
    assert [chunk.sequence_number for chunk in chunks] == [0, 1, 2]
    assert [float(chunk.waveform[0]) for chunk in chunks] == pytest.approx([0.01, 0.02, 0.03])
    assert {request.inputs["session_id"] for request in rig.server.received[-3:]} != {b"mine"}


def test_headers_of_a_client_end_at_the_gate(rig: GateRig) -> None:
    with Client(rig, TRITON_DEADLY) as client:
        client.send(message(target_text="x", session_id="a", is_start=True, is_end=True))
        assert told(client.take())[1] == "audio"
    assert set(rig.server.metadata[-1]) <= {"user-agent", "te", "content-type", "accept-encoding"}
    assert rig.server.metadata[-1]["user-agent"].startswith("bistream-gate")


def test_what_is_refused_never_reaches_the_server_and_the_audio_beside_goes_on(rig: GateRig) -> None:
    with Client(rig) as client:
        client.send(message(request_id="speaks", target_text="x", session_id="a", is_start=True, is_end=False))
        assert told(client.take())[:2] == ("speaks", "audio")
        before = len(rig.server.received)
        for wrong in (message(model="nope", request_id="wrong", target_text="x"), message(request_id="wrong", volume=1.0)):
            client.send(wrong)
            assert [told(client.take()) for _ in range(2)] == [("wrong", "INVALID_INPUT", False), ("wrong", "final", True)]
        client.send(b"\xff\xff damaged")
        assert [told(client.take()) for _ in range(2)] == [("", "INVALID_INPUT", False), ("", "final", True)]
        assert len(rig.server.received) == before
        client.send(message(request_id="end", target_text="y", session_id="a", is_start=False, is_end=True))
        assert {told(client.take())[:2] for _ in range(3)} == {("end", "final"), ("speaks", "audio"), ("speaks", "final")}


def test_an_empty_final_response_comes_only_to_those_who_ask(rig: GateRig) -> None:
    with Client(rig) as client:
        client.send(message(request_id="a", wants_final=False, model="nope"))
        client.send(message(request_id="b", wants_final=False, target_text="x", session_id="a", is_start=True, is_end=True))
        client.half_close()
        assert [told(response)[:2] for response in client.call] == [("a", "INVALID_INPUT"), ("b", "audio")]
        assert client.call.code() == grpc.StatusCode.OK


def test_a_recording_of_megabytes_arrives_whole(rig: GateRig) -> None:
    recording = np.linspace(-1, 1, 480_000, dtype=np.float32)
    with BistreamClient(rig.grpc_url).start(reference_wav=recording, reference_text="x", text="x", is_end=True) as session:
        assert len(list(session)) == 1
    assert np.array_equal(rig.server.received[-1].inputs["reference_wav"][0], recording)


def flood(request: Received, stream: Stream) -> None:
    """The server speaks four minutes at once."""
    for number in range(240):
        stream.audio(request.id, np.zeros(24_000), number, 0)


def test_a_client_that_never_reads_keeps_a_bounded_amount() -> None:
    with GateRig(flood, GateLimits(max_unread_audio_s=10)) as rig, Client(rig) as reader:
        options = [("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]
        channel = grpc.insecure_channel(rig.grpc_url, options=options)
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream(METHOD)(iter(requests.get, None))
        requests.put(message(target_text="x", session_id="a", is_start=True, is_end=False).SerializeToString())
        rig.wait_for(lambda: rig.gate.metrics.refusals["CANCELLED"] == 1)
        assert rig.server.stream_gone.wait(240)
        rig.wait_for(lambda: rig.gate.admission.sessions == 0)
        reader.send(message(model="nope"))
        assert told(reader.take())[1] == "INVALID_INPUT"  # others are served
        requests.put(None)
        call.cancel()
        channel.close()
        rig.wait_for(lambda: rig.gate.admission.calls == 1)


@pytest.mark.parametrize("probes_bandwidth", [1, 0])  # 0: a window of 64 KiB, in which the message of a second has no room
def test_a_client_that_takes_nothing_loses_its_session_and_counts_until_it_has_heard_so(probes_bandwidth: int) -> None:
    with GateRig(flood, GateLimits(stall_timeout_s=0.2, max_unread_audio_s=1e6)) as rig:
        channel = grpc.insecure_channel(rig.grpc_url, [("grpc.http2.bdp_probe", probes_bandwidth)])
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream(METHOD)(iter(requests.get, None))
        requests.put(message(target_text="x", is_end=True).SerializeToString())
        rig.wait_for(lambda: rig.gate.metrics.streams == 1 and not rig.gate.streams)
        assert (rig.gate.admission.sessions, rig.gate.admission.calls) == (0, 1)
        with pytest.raises(grpc.RpcError) as ended:
            for _ in call:
                pass
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        rig.wait_for(lambda: rig.gate.admission.calls == 0)
        requests.put(None)
        channel.close()


def test_a_stream_without_a_session_is_told_why_it_ends() -> None:
    with GateRig(Speakers(), GateLimits(idle_stream_timeout_s=0.2)) as rig, Client(rig) as idle:
        with pytest.raises(grpc.RpcError) as ended:
            idle.take()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE and "open another one" in str(ended.value.details())


# Unary calls


def test_a_whole_text_in_one_call(rig: GateRig) -> None:
    client = triton.InferenceServerClient(rig.grpc_url)
    text = triton.InferInput("target_text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"abc"]], np.object_))
    result = client.infer(OFFLINE, [text], request_id="seven", outputs=[triton.InferRequestedOutput("waveform")])
    assert result.get_response().id == "seven"
    assert result.as_numpy("waveform").tolist() == pytest.approx([ord(letter) / 256 for letter in "abc"])
    client.close()


def unary_error(rig: GateRig, request: Any) -> tuple[grpc.StatusCode, str]:
    channel, stub = rig.stub()
    with channel, pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request)
    return refused.value.code(), refused.value.details()


def test_upstreams_name_for_cosyvoice3_means_the_same_model(rig: GateRig) -> None:
    with triton.InferenceServerClient(rig.grpc_url) as client, Client(rig) as stream:
        assert client.get_model_config(OTHER).config.name == client.get_model_metadata(OTHER).name == OFFLINE
        assert client.is_model_ready(OTHER) and not client.is_model_ready("cosyvoice4")
        asked = rig.server.unary_requests
        with grpc.insecure_channel(rig.grpc_url) as channel:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message(OTHER, target_text="ab"), timeout=240)
        assert asked[-1].model_name == OFFLINE
        stream.send(message(OTHER, "2"))
        assert told(stream.take()) == ("2", "INVALID_INPUT", False)


def test_a_model_of_another_family_reaches_triton_only_where_it_is_served(rig: GateRig) -> None:
    whole = message(SPARK, target_text="ab")
    with triton.InferenceServerClient(rig.grpc_url) as client, Client(rig) as stream:
        assert client.is_model_ready(SPARK) and client.get_model_config(SPARK).config.name == SPARK
        with grpc.insecure_channel(rig.grpc_url) as channel:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(whole, timeout=240)
        assert rig.server.unary_requests[-1].model_name == SPARK
        stream.send(whole)
        assert stream.take().infer_response.outputs
        before, streams = len(rig.server.unary_requests), len(rig.server.metadata)
        rig.server.missing = {SPARK}
        try:
            assert not client.is_model_ready(SPARK)
            for question in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
                with pytest.raises(Exception, match="NOT_SERVED.*use cosyvoice2_bistream or cosyvoice2"):
                    question(SPARK)
            code, details = unary_error(rig, whole)
            assert code == grpc.StatusCode.INVALID_ARGUMENT and "'spark_tts' is not served here" in details
            with Client(rig) as other:
                other.send(whole)
                assert told(other.take()) == ("r", "INVALID_INPUT", False) and told(other.take()) == ("r", "final", True)
        finally:
            rig.server.missing = set()
        assert (len(rig.server.unary_requests), len(rig.server.metadata)) == (before, streams)


def test_unary_errors_have_a_status_and_a_code(rig: GateRig) -> None:
    assert unary_error(rig, message(model=BISTREAM, target_text="x"))[0] == grpc.StatusCode.UNIMPLEMENTED
    code, details = unary_error(rig, message(model=OFFLINE))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith("INVALID_INPUT: ")
    rig.server.refusal = "BUSY: All 3 sessions are taken; try again later."
    try:
        assert unary_error(rig, message(model=OFFLINE, target_text="x")) == (grpc.StatusCode.RESOURCE_EXHAUSTED, rig.server.refusal)
        rig.server.refusal = "Failed in /srv/model.py"
        code, details = unary_error(rig, message(model=OFFLINE, target_text="x"))
        assert code == grpc.StatusCode.INTERNAL and details.startswith("ENGINE_ERROR: ") and "/srv" not in details
    finally:
        rig.server.refusal = None
    rig.server.is_decoupled = True
    try:
        assert unary_error(rig, message(model=OFFLINE, target_text="x"))[0] == grpc.StatusCode.UNIMPLEMENTED
    finally:
        rig.server.is_decoupled = False


def test_what_is_public_is_told_and_nothing_else(rig: GateRig) -> None:
    client = triton.InferenceServerClient(rig.grpc_url)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(BISTREAM) and not client.is_model_ready("llm_bistream")
    assert list(client.get_server_metadata().extensions) == ["statistics"]
    metadata = client.get_model_metadata(OFFLINE)
    assert metadata.name == OFFLINE and [tensor.name for tensor in metadata.inputs] == ["target_text"]
    config = client.get_model_config(OFFLINE)
    assert config.config.parameters["model_family"].string_value == "cosyvoice2"
    assert (
        [tensor.name for tensor in config.config.input] == ["target_text"] and "secret" not in str(config) and "model.py" not in str(config)
    )
    assert [stats.name for stats in client.get_inference_statistics().model_stats] == [OFFLINE, BISTREAM]
    for question in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        with pytest.raises(Exception, match="NOT_SERVED"):
            question("llm_bistream")
    client.close()


@pytest.mark.parametrize(
    "method",
    sorted(
        name
        for name in vars(service_pb2_grpc.GRPCInferenceServiceServicer)
        if name.startswith(("Repository", "System", "Cuda", "Trace", "Log"))
    ),
)
def test_the_operators_calls_are_refused(rig: GateRig, method: str) -> None:
    channel, stub = rig.stub()
    request = next(getattr(service_pb2, name) for name in (f"{method}Request",))
    with channel, pytest.raises(grpc.RpcError) as refused:
        getattr(stub, method)(request())
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


# Keys, limits, TLS


def test_keys_open_everything_but_health() -> None:
    with GateRig(Speakers(), keys=Keys({"k" * 16: "anna"})) as rig:
        with Client(rig) as client:
            with pytest.raises(grpc.RpcError) as refused:
                client.take()
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with Client(rig, (("authorization", f"Bearer {'k' * 16}"),)) as client:
            client.send(message(target_text="x", is_end=True))
            assert told(client.take())[1] == "audio"
        anonymous = triton.InferenceServerClient(rig.grpc_url)
        assert anonymous.is_server_live() and anonymous.is_server_ready()
        with pytest.raises(Exception, match="UNAUTHENTICATED"):
            anonymous.get_model_config(BISTREAM)
        anonymous.close()
        assert all("authorization" not in metadata for metadata in rig.server.metadata)


# Many at a time
