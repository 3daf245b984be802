"""Random inputs at every model, directly at Triton's own port, and at both ports of the gate.

Whatever comes, the client gets a valid answer or an error with a code, no process dies, and the next good session works. Not sent to Triton
itself: what is known to end this build of it (headers, damaged messages and unknown models on a stream), what the gate keeps from it, and
batches of no recordings, which its dynamic batching never answers (only the front models call those models, with one recording each).
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.contract.fields import CONTRACTS, COSYVOICE2, COSYVOICE2_BISTREAM
from bistream.errors import ERRORS_BY_CODE
from tests.triton.attacks.exchange import ANSWER_TIMEOUT_S, INTERNALS, call_once, coded, converse, message
from tests.triton.attacks.sizes import Sizes
from tests.triton.attacks.tensors import TYPES, Request, Tensor, requests
from tests.triton.processes import described, named, replaced
from tests.triton.reliability import Attack
from tests.triton.served import Served

BY_NAME = {contract.name: contract for contract in CONTRACTS}
STREAMED = ("cosyvoice2_bistream", "llm_bistream", "token2wav")
UNARY = ("cosyvoice2", "audio_tokenizer", "speaker_embedding")
MUST = "a valid answer or an error with a code; no process dies; the next good session has its audio"
GATE_CODES = ("NOT_SERVED", "WRONG_CALL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
CODE = re.compile(rf"({'|'.join((*ERRORS_BY_CODE, *GATE_CODES))}): .")


def attack_with(count: int, strategy: st.SearchStrategy[Any], send: Callable[[Any], list[str]], attack: Attack) -> None:
    """``count`` examples, each of which ``send`` turns into outcomes."""

    @settings(max_examples=count, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(example: Any) -> None:
        attack.got(send(example))

    run()


@pytest.fixture
def _unharmed(hostile: Served, attack: Attack) -> Iterator[None]:
    """The processes after a test are those of before, and serve."""
    attack.unit = "inputs"
    before = named(hostile.keeper.pid)
    yield
    assert hostile.new_session() == "audio"
    attack.processes = described(before, named(hostile.keeper.pid))
    assert replaced(before, named(hostile.keeper.pid)) == []


def scripts(model: str) -> st.SearchStrategy[list[Request]]:
    """Requests of one or two sessions that are sent at the same time."""
    return st.lists(requests(BY_NAME[model]), min_size=2, max_size=3)


def has_no_rows(request: Request) -> bool:
    return any(tensor.shape[:1] == (0,) for tensor in request.tensors.values())


@pytest.mark.usefixtures("_unharmed")
@pytest.mark.attack("random inputs to `{model}`, directly", must=MUST)
@pytest.mark.parametrize("model", [*STREAMED, *UNARY])
def test_a_model_survives_random_inputs(hostile: Served, sizes: Sizes, attack: Attack, model: str) -> None:
    with grpc.insecure_channel(hostile.keeper.addresses()["triton"], [("grpc.max_receive_message_length", -1)]) as channel:
        if model in UNARY:
            answered = requests(BY_NAME[model]).filter(lambda one: not (BY_NAME[model].is_batched and has_no_rows(one)))
            attack_with(sizes.inputs, answered, lambda one: [call_once(channel, one)], attack)
        else:
            attack_with(sizes.inputs // 2, scripts(model), lambda some: converse(channel, some, share_stream=False), attack)


@pytest.mark.usefixtures("_unharmed")
@pytest.mark.attack("random inputs to `{model}`, at the gate's gRPC port", must=MUST)
@pytest.mark.parametrize("model", [COSYVOICE2_BISTREAM.name, COSYVOICE2.name])
def test_the_grpc_port_survives_random_inputs(hostile: Served, sizes: Sizes, attack: Attack, model: str) -> None:
    with grpc.insecure_channel(hostile.keeper.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        if model == COSYVOICE2.name:
            attack_with(sizes.inputs, requests(COSYVOICE2), lambda one: [call_once(channel, one)], attack)
        else:
            attack_with(sizes.inputs // 2, scripts(model), lambda some: converse(channel, some, share_stream=True), attack)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with bytes replaced, cut off or repeated; or any bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(message(draw(requests(draw(st.sampled_from(CONTRACTS))))).SerializeToString()[:20_000])
    for _ in range(draw(st.integers(1, 5))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@pytest.mark.usefixtures("_unharmed")
@pytest.mark.attack("damaged messages and any model's requests at the gate's gRPC port", must=MUST)
def test_the_grpc_port_survives_damaged_messages(hostile: Served, sizes: Sizes, attack: Attack) -> None:
    """The first answer or the status of the stream tells what became of each."""

    def send(data: bytes) -> list[str]:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([data]), timeout=ANSWER_TIMEOUT_S)
        try:
            answers = list(call)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), error
            return [coded(error.details())]
        return [outcome_of(answers)]

    with grpc.insecure_channel(hostile.keeper.grpc_url) as channel:
        attack_with(sizes.inputs, damaged(), send, attack)


def outcome_of(answers: list[bytes]) -> str:
    stream = [service_pb2.ModelStreamInferResponse.FromString(data) for data in answers]
    errors = [one.error_message for one in stream if one.error_message]
    assert stream, "a stream ended without an answer"
    return coded(errors[0]) if errors else "answer"


# HTTP


def as_json(tensor: Tensor) -> list[Any]:
    """Data of a tensor as numbers or text; what cannot be read so is sent as numbers of its bytes."""
    if tensor.datatype == "BYTES":
        return [tensor.data[4:].decode(errors="replace")]
    kind = TYPES.get(tensor.datatype, np.uint8)
    usable = len(tensor.data) // np.dtype(kind).itemsize * np.dtype(kind).itemsize
    found: list[Any] = np.frombuffer(tensor.data[:usable], kind).tolist()
    return found


def json_body(request: Request) -> bytes:
    inputs = [
        {"name": name, "datatype": one.datatype, "shape": list(one.shape), "data": as_json(one)} for name, one in request.tensors.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def binary_body(request: Request) -> tuple[bytes, int]:
    """With tensors after the JSON; the length of the JSON."""
    inputs = [
        {"name": name, "datatype": one.datatype, "shape": list(one.shape), "parameters": {"binary_data_size": len(one.data)}}
        for name, one in request.tensors.items()
    ]
    head = json.dumps({"inputs": inputs}).encode()
    return head + b"".join(one.data for one in request.tensors.values()), len(head)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
NAMED = st.fixed_dictionaries({}, optional={"inputs": JSON, "outputs": JSON, "parameters": JSON, "id": JSON})
PATHS = ("/v2/models/cosyvoice2/infer",) * 24 + (
    "/v2/models/cosyvoice2_bistream/infer",
    "/v2/models/token2wav/infer",
    "/v2/models/cosyvoice2/generate",
    "/v2/repository/index",
    "/v2/systemsharedmemory/region/x/register",
    "/v2/../v2/logging",
    "/%00",
)


@st.composite
def http_requests(draw: st.DrawFn) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body, headers."""
    method, path = draw(st.sampled_from(("POST",) * 16 + ("GET", "PUT", "DELETE"))), draw(st.sampled_from(PATHS))
    kind = draw(st.sampled_from(("json", "json", "binary", "binary", "fields", "any", "bytes")))
    if kind == "binary":
        body, length = binary_body(draw(requests(COSYVOICE2)))
        length += draw(st.sampled_from((0, 0, 0, 1, -1, 10**9)))
        return method, path, body, {"Inference-Header-Content-Length": str(length)}
    if kind == "json":
        body = json_body(draw(requests(COSYVOICE2)))
    elif kind == "bytes":
        body = draw(st.binary(max_size=100))
    else:
        body = json.dumps(draw(NAMED if kind == "fields" else JSON)).encode()
    return method, path, body, draw(st.sampled_from(({}, {}, {"Content-Encoding": "gzip"}, {"Content-Type": "text/plain"})))


def ask_http(url: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> str:
    host, _, port = url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status == 200:
            return "answer"
        assert response.status not in (500, 502), text
        assert CODE.match(json.loads(text)["error"]) and not INTERNALS.search(text), text
        return f"{response.status}"
    except (BrokenPipeError, ConnectionResetError):
        return "closed"  # refused while it was still being sent
    finally:
        connection.close()


@pytest.mark.usefixtures("_unharmed")
@pytest.mark.attack("random requests at the gate's HTTP port", must=MUST)
def test_the_http_port_survives_random_requests(hostile: Served, sizes: Sizes, attack: Attack) -> None:
    attack_with(sizes.inputs, http_requests(), lambda one: [ask_http(hostile.keeper.http_url, *one)], attack)
