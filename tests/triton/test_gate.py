"""The gate in front of the real server: what clients hear through it, and that what killed the server does not reach it any more."""

from __future__ import annotations

import http.client
import queue
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from bistream.contract.codec import scalar_array, text_array
from bistream.keeper.server_process import TritonServer
from gateway.settings import GateLimits
from tests.triton.chaos import Storm
from tests.triton.conftest import PATIENCE_S, wait_for
from tests.triton.gate_process import GateProcess
from tests.triton.reliability import Attack
from tests.triton.requests import Stream, ask, to_input
from tests.triton.test_sessions import MODEL, check_audio
from tests.triton.upstream_clients import MODEL as UPSTREAMS_MODEL
from tests.triton.upstream_clients import MODEL3, SPARK_MODEL, ask_over_http, infer_offline

Voice = dict[str, Any]
METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
PIECES = ["The first words of a text are enough to begin with, ", "the r", "est may come l", "ater."]


@pytest.fixture(scope="module")
def gate(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GateProcess]:
    """Before the shared server, which is the same afterwards as before."""
    with GateProcess(server, tmp_path_factory.mktemp("gate"), GateLimits(starts_per_second=0, max_silence_s=PATIENCE_S)) as made:
        yield made
        assert server.exit_code() is None and server.models.take_dead() == []
        made.check_end()


def in_pieces(stream: Stream, voice: Voice, between: Callable[[], None] = lambda: None) -> Any:
    """A session that is fed in pieces, with ``between`` called while it speaks."""
    session_id = uuid.uuid4().hex
    start = stream.send(MODEL, session_id=session_id, target_text=PIECES[0], is_end=False, **voice)
    stream.receive_audio(start)
    between()
    for piece in PIECES[1:]:
        is_end = piece is PIECES[-1]
        accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end))
        assert accepted.error is None and accepted.finals == 1 and accepted.last_is_empty
    return stream.receive(start)


def test_a_session_sounds_the_same_through_the_gate(gate: GateProcess, grpc_url: str, voice: Voice) -> None:
    through, direct = (ask(url, MODEL, target_text="Twice.", seed=7, **voice) for url in (gate.grpc_url, grpc_url))
    check_audio(through, len("Twice."))
    assert np.array_equal(through.waveform, direct.waveform)


@pytest.fixture(scope="module")
def offline_gate(offline_server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GateProcess]:
    with GateProcess(offline_server, tmp_path_factory.mktemp("offline_gate")) as made:
        yield made
        made.check_end()


@pytest.mark.parametrize("name", [UPSTREAMS_MODEL, MODEL3])
def test_upstreams_clients_work_offline(offline_gate: GateProcess, reference_wav: NDArray[np.float32], name: str) -> None:
    over_grpc = infer_offline(offline_gate.grpc_url, reference_wav[0], "A reference.", "Good morning.", name)
    over_http = ask_over_http(offline_gate.http_url, reference_wav[0], "A reference.", "Good morning.", name)
    assert over_grpc.ndim == over_http.ndim == 1 and over_grpc.size == over_http.size > 0


# What killed the server. Each runs beside a session, which must not notice.


class Raw:
    """A stream of raw bytes with any headers. Its answers are read in the background of gRPC and counted by nobody."""

    def __init__(self, url: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = grpc.insecure_channel(url)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = self._channel.stream_stream(METHOD)(iter(self._requests.get, None), metadata=metadata)

    def send(self, data: bytes) -> None:
        self._requests.put(data)

    def take(self) -> Any:
        return service_pb2.ModelStreamInferResponse.FromString(next(self.call))

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()


def raw_request(model: str, **arrays: NDArray[Any]) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=uuid.uuid4().hex)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, array in arrays.items():
        tensor = to_input(name, array)
        message.inputs.append(tensor._get_tensor())
        message.raw_input_contents.append(tensor._get_content())
    return message


def deadly_header(url: str) -> None:
    """An error of a model beside an open request, on a stream that asks for errors as statuses."""
    raw = Raw(url, (("triton_grpc_error", "true"),))
    raw.send(
        raw_request(
            MODEL, target_text=text_array("x"), session_id=text_array("a"), is_end=scalar_array(False, np.bool_)
        ).SerializeToString()
    )
    raw.send(raw_request(MODEL, target_text=text_array("x")).SerializeToString())
    assert raw.take().error_message
    raw.close()


def gone_with_the_answer(url: str) -> None:
    """The gate then reset its streams to Triton in the moment of their answers, which ended the server about once in 700 times."""
    raw = Raw(url)
    for values in ({"session_id": text_array("a"), "is_end": scalar_array(False, np.bool_)}, {}):
        raw.send(raw_request(MODEL, target_text=text_array("x"), **values).SerializeToString())
    assert raw.take().error_message
    raw.close()


def unknown_model_after_a_refusal(url: str) -> None:
    raw = Raw(url)
    raw.send(raw_request(MODEL, target_text=text_array("")).SerializeToString())
    raw.send(raw_request("nobody", target_text=text_array("x")).SerializeToString())
    for _ in range(4):
        raw.take()
    raw.close()


def inner_models(url: str) -> None:
    raw = Raw(url)
    for number in range(16):
        text, name = text_array("x"), text_array(f"hoard-{number}")
        raw.send(raw_request("llm_bistream", text=text, session_id=name, is_end=scalar_array(False, np.bool_)).SerializeToString())
    raw.send(raw_request("token2wav", target_speech_tokens=np.zeros(7000, np.int32)).SerializeToString())
    for _ in range(17):
        assert raw.take().error_message.startswith("INVALID_INPUT")
        raw.take()
    raw.close()


def damaged_messages(url: str) -> None:
    choose = random.Random(0)
    good = raw_request(MODEL, target_text=text_array("x"), session_id=text_array("a")).SerializeToString()
    raw = Raw(url)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(choose.randrange(1, 6)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        raw.send(bytes(data[: choose.randrange(len(data) + 1)]))
    raw.take()
    raw.close()


def large_json(http_url: str) -> None:
    host, _, port = http_url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v2/models/nobody/infer", b'{"inputs": [' + 4_500_000 * b"1" + b"]}")
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused while it was still being sent
    finally:
        connection.close()


ATTACKS: dict[str, tuple[Callable[[str], None], int]] = {
    "the header that asks for statuses": (deadly_header, 10),
    "an unknown model after a refusal": (unknown_model_after_a_refusal, 10),
    "inner models": (inner_models, 3),
    "damaged messages": (damaged_messages, 10),
    "clients that go with their answer": (gone_with_the_answer, 100),
}


@pytest.mark.attack("{name}, at the gate beside a session", must="the session has all its audio; Triton goes on")
@pytest.mark.parametrize("name", ATTACKS)
def test_what_killed_the_server_is_not_noticed_beside(
    gate: GateProcess, server: TritonServer, voice: Voice, name: str, attack: Attack
) -> None:
    send, times = ATTACKS[name]
    attack.tried, attack.unit = times, "times"
    with Stream(gate.grpc_url) as stream:

        def repeatedly() -> None:
            for _ in range(times):
                send(gate.grpc_url)

        check_audio(in_pieces(stream, voice, repeatedly), len("".join(PIECES)))
    attack.outcomes["audio"] += 1
    assert server.exit_code() is None


def test_an_unknown_model_beside_audio_on_one_stream(gate: GateProcess, server: TritonServer, voice: Voice) -> None:
    with Stream(gate.grpc_url) as stream:

        def ask_for_nobody() -> None:
            for name in 5 * ["nobody", SPARK_MODEL]:  # the second is a model of another family than the server's
                refused = stream.send(name, target_text="x")
                stream.receive(refused)
                assert refused.code == "INVALID_INPUT" and refused.finals == 1

        check_audio(in_pieces(stream, voice, ask_for_nobody), len("".join(PIECES)))
    assert server.exit_code() is None


def test_large_json_is_refused_beside_a_session(gate: GateProcess, server: TritonServer, voice: Voice) -> None:
    with Stream(gate.grpc_url) as stream:

        def send_json() -> None:
            for _ in range(5):
                large_json(gate.http_url)

        check_audio(in_pieces(stream, voice, send_json), len("".join(PIECES)))
    assert server.exit_code() is None


# Sessions and places


def test_a_client_that_goes_frees_its_place(gate: GateProcess, voice: Voice) -> None:
    """The server of the tests takes three sessions: were one kept, the last start would be refused."""
    for _ in range(4):
        stream = Stream(gate.grpc_url)
        start = stream.send(MODEL, session_id=uuid.uuid4().hex, target_text="Nobody hears the rest. ", is_end=False, **voice)
        stream.receive_audio(start)
        stream.drop()
    wait_for(lambda: ask(gate.grpc_url, MODEL, target_text="Next.", **voice).code is None, "a free place")


@pytest.mark.slow
def test_many_bad_clients_at_a_time(gate: GateProcess, server: TritonServer, voice: Voice) -> None:
    storm = Storm(gate.grpc_url, {"tone": voice}, seed=1)
    counts = storm.run(20.0, 4)
    assert not storm.failures, storm.failures
    assert sum(counts.values()) > 0 and server.exit_code() is None
