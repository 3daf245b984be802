"""The HTTP door from outside, and KServe's JSON by itself."""

from __future__ import annotations

import http.client
import json
import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.client.say_http import request_body, synthesize
from bistream.errors import BistreamError, InvalidInputError
from gateway import http_json, http_server
from gateway.http_json import read_infer, write_answer
from gateway.keys import Keys
from gateway.settings import GateLimits
from tests.unit.gateway.requests import BISTREAM, OFFLINE
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

TEXT = {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": ["abc"]}
EXPECTED = [ord(letter) / 256 for letter in "abc"]
INFER = f"/v2/models/{OFFLINE}/infer"


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig() as made:
        yield made
        made.wait_for(lambda: made.gate.admission.calls == 0 and made.gate.admission.sessions == 0)


def ask(
    rig: GateRig, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str | None = None
) -> tuple[int, bytes, Any]:
    """(status, body, headers)"""
    connection = http.client.HTTPConnection(rig.http_url, timeout=TIMEOUT_S)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def infer(rig: GateRig, *inputs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    status, body, _ = ask(rig, INFER, json.dumps({"inputs": inputs, **more}).encode())
    return status, json.loads(body)


def test_our_http_client_speaks_through_the_gate(rig: GateRig) -> None:
    recording = np.linspace(-0.5, 0.5, 8000, dtype=np.float32)
    waveform = synthesize(rig.http_url, OFFLINE, request_body("abc", recording, "What it says."), TIMEOUT_S)
    assert waveform.tolist() == pytest.approx(EXPECTED)
    forwarded = rig.server.unary_requests[-1]
    values = {tensor.name: raw for tensor, raw in zip(forwarded.inputs, forwarded.raw_input_contents, strict=True)}
    assert np.frombuffer(values["reference_wav"], np.float32) == pytest.approx(recording, abs=1e-5)
    assert values["reference_wav_len"] == (8000).to_bytes(4, "little")


def test_the_answer_is_kserves(rig: GateRig) -> None:
    status, answer = infer(rig, TEXT, id="seven")
    assert status == 200 and (answer["id"], answer["model_name"], answer["model_version"]) == ("seven", OFFLINE, "1")
    assert [(output["name"], output["datatype"], output["shape"]) for output in answer["outputs"]] == [("waveform", "FP32", [3])]


@pytest.mark.parametrize("parameters", [{"binary_data_output": True}, None])
def test_binary_tensors_in_and_out(rig: GateRig, parameters: dict[str, Any] | None) -> None:
    text = b"\3\0\0\0abc"
    request: dict[str, Any] = {
        "inputs": [{"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(text)}}]
    }
    if parameters is None:
        request["outputs"] = [{"name": "waveform", "parameters": {"binary_data": True}}]
    else:
        request["parameters"] = parameters
    head = json.dumps(request).encode()
    status, body, headers = ask(rig, INFER, head + text, {"Inference-Header-Content-Length": str(len(head))})
    size = int(headers["inference-header-content-length"])
    assert status == 200 and json.loads(body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert np.frombuffer(body[size:], np.float32).tolist() == pytest.approx(EXPECTED)


def test_a_long_recording_comes_as_a_binary_tensor(rig: GateRig) -> None:
    recording = np.zeros(480_000, np.float32).tobytes()
    wav = {"name": "reference_wav", "shape": [1, 480_000], "datatype": "FP32", "parameters": {"binary_data_size": len(recording)}}
    head = json.dumps({"inputs": [wav, TEXT]}).encode()
    status, _, _ = ask(rig, INFER, head + recording, {"Inference-Header-Content-Length": str(len(head))})
    assert status == 200 and len(rig.server.unary_requests[-1].raw_input_contents[0]) == len(recording)


WRONG_BODIES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", "no JSON"),
    "a list": (b"[]", "no JSON object"),
    "not UTF-8": (b'{"inputs": "\xff"}', "no JSON"),
    "no inputs": (b"{}", "target_text"),
    "inputs are a word": (b'{"inputs": "x"}', "inputs"),
    "an input is a number": (b'{"inputs": [3]}', "inputs"),
    "no name": (json.dumps({"inputs": [{"shape": [1, 1], "datatype": "BYTES", "data": ["x"]}]}).encode(), "name"),
    "no data": (json.dumps({"inputs": [{**TEXT, "data": None}]}).encode(), "target_text"),
    "numbers for text": (json.dumps({"inputs": [{**TEXT, "data": [1]}]}).encode(), "target_text"),
    "two texts": (json.dumps({"inputs": [{**TEXT, "data": ["a", "b"]}]}).encode(), "target_text"),
    "a wrong shape": (json.dumps({"inputs": [{**TEXT, "shape": [1]}]}).encode(), "[1, 1]"),
    "a shape of words": (json.dumps({"inputs": [{**TEXT, "shape": ["1"]}]}).encode(), "shape"),
    "an unknown input": (json.dumps({"inputs": [{**TEXT, "name": "x"}]}).encode(), "'x'"),
    "an unknown output": (json.dumps({"inputs": [TEXT], "outputs": [{"name": "x"}]}).encode(), "'x'"),
    "an id that is a number": (json.dumps({"inputs": [TEXT], "id": 3}).encode(), "id"),
    "shared memory": (json.dumps({"inputs": [{**TEXT, "parameters": {"shared_memory_region": "x"}}]}).encode(), "Shared memory"),
    "ragged lists": (
        json.dumps({"inputs": [TEXT, {"name": "reference_wav", "shape": [1, 3], "datatype": "FP32", "data": [[1, 2], [3]]}]}).encode(),
        "reference_wav",
    ),
    "words for samples": (
        json.dumps({"inputs": [TEXT, {"name": "reference_wav", "shape": [1, 1], "datatype": "FP32", "data": ["1"]}]}).encode(),
        "reference_wav",
    ),
    "a huge integer": (
        json.dumps({"inputs": [TEXT, {"name": "reference_wav_len", "shape": [1, 1], "datatype": "INT32", "data": [2**40]}]}).encode(),
        "reference_wav_len",
    ),
    "an integer beyond all": (
        b'{"inputs": [{"name": "reference_wav_len", "shape": [1, 1], "datatype": "INT32", "data": [' + 5000 * b"9" + b"]}]}",
        "JSON",
    ),
    "binary without a header": (json.dumps({"inputs": [{**TEXT, "parameters": {"binary_data_size": 7}}]}).encode(), "binary_data_size"),
    "too deep": (b'{"inputs":' + 9 * b"[" + 9 * b"]" + b"}", "8 lists"),
    "far too deep": (100_000 * b"[", "8 lists"),
}


@pytest.mark.parametrize("name", WRONG_BODIES)
def test_a_wrong_body_is_refused(rig: GateRig, name: str) -> None:
    body, words = WRONG_BODIES[name]
    before = len(rig.server.unary_requests)
    status, answer, _ = ask(rig, INFER, body)
    error = json.loads(answer)["error"]
    assert status == 400 and error.startswith("INVALID_INPUT: ") and words in error
    assert len(rig.server.unary_requests) == before


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused_before_it_is_parsed(rig: GateRig, announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that writes all of it before it reads hears so, too."""
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", TIMEOUT_S)
    size, chunk = 8_000_000, 65_536
    with socket.create_connection(rig.http_url.split(":"), timeout=TIMEOUT_S) as peer:  # type: ignore[arg-type]
        how = f"Content-Length: {size}" if announced else "Transfer-Encoding: chunked"
        peer.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n".encode())
        for _ in range(size // chunk):
            peer.sendall(chunk * b"1" if announced else f"{chunk:x}\r\n".encode() + chunk * b"1" + b"\r\n")
        assert peer.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_compressed_body_is_refused(rig: GateRig) -> None:
    assert ask(rig, INFER, b"x", {"Content-Encoding": "gzip"})[0] == 400


@pytest.mark.parametrize("length", ["x", "-1", "1e3", "\u0663", "9" * 30])
def test_a_wrong_length_of_the_json_is_refused(rig: GateRig, length: str) -> None:
    assert ask(rig, INFER, b"{}", {"Inference-Header-Content-Length": length.encode().decode("latin-1")})[0] == 400


def test_errors_of_the_server_keep_their_code(rig: GateRig) -> None:
    rig.server.refusal = "BUSY: All 3 sessions are taken; try again later."
    try:
        with pytest.raises(BistreamError) as refused:
            synthesize(rig.http_url, OFFLINE, request_body("abc", None, None), TIMEOUT_S)
        assert refused.value.code == "BUSY"
    finally:
        rig.server.refusal = None


def test_a_model_that_streams_is_said_to(rig: GateRig) -> None:
    assert ask(rig, f"/v2/models/{BISTREAM}/infer", json.dumps({"inputs": [TEXT]}).encode())[0] == 501


def test_what_is_public_is_told(rig: GateRig) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{OFFLINE}/ready", f"/v2/models/{OFFLINE}/versions/1/ready"):
        assert ask(rig, path)[0] == 200, path
    assert json.loads(ask(rig, "/v2")[1])["name"] == "triton"
    assert json.loads(ask(rig, f"/v2/models/{OFFLINE}")[1])["inputs"] == [{"name": "target_text", "datatype": "BYTES", "shape": [1, 1]}]
    config = ask(rig, f"/v2/models/{OFFLINE}/config")[1]
    assert json.loads(config)["input"][0]["dims"] == [1, 1] and b"secret" not in config
    shown = {"model_family": "cosyvoice2", "languages": "de,en", "can_be_instructed": "false", "max_text_chars": "4000"}
    shown |= {"sample_rate": "24000", "tokens_per_second": "25", "max_sessions": "96", "reserved_speech_s": "7.0"}
    assert json.loads(config)["parameters"] == {name: {"string_value": value} for name, value in shown.items()}
    statistics = json.loads(ask(rig, f"/v2/models/{OFFLINE}/stats")[1])["model_stats"]
    assert [(stats["name"], stats["inference_count"]) for stats in statistics] == [(OFFLINE, 3)]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/llm_bistream",
        "/v2/models/llm_bistream/config",
        "/v2/models/llm_bistream/stats",
        "/v2/models/cosyvoice2/generate",
        "/v2/repository/index",
        "/v2/systemsharedmemory/status",
        "/v2/logging",
        "/v2/trace/setting",
        "/metrics/",
        "/../etc/passwd",
        "/docs",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_else_is_served(rig: GateRig, path: str, method: str) -> None:
    status, _, _ = ask(rig, path, method=method)
    assert status in (404, 405, 307)


def test_metrics_count(rig: GateRig) -> None:
    infer(rig, TEXT)
    infer(rig, {**TEXT, "name": "x"})
    lines = ask(rig, "/metrics")[1].decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["bistream_gate_sessions_total"]) == rig.gate.metrics.sessions > 0
    assert float(values['bistream_gate_refusals_total{code="INVALID_INPUT"}']) > 0
    assert values["bistream_gate_ready"] == "1.0"


def test_keys_open_everything_but_health() -> None:
    with GateRig(keys=Keys({"k" * 16: "anna"})) as rig:
        assert ask(rig, "/v2/health/ready")[0] == 200
        body = json.dumps({"inputs": [TEXT]}).encode()
        for path, sent in ((INFER, body), ("/metrics", None), ("/v2", None), ("/x", None)):
            assert ask(rig, path, sent)[0] == 401, path
        assert ask(rig, INFER, body, {"xi-api-key": "k" * 16})[0] == 200


def test_a_client_that_goes_is_forgotten(rig: GateRig) -> None:
    body = json.dumps({"inputs": [TEXT]}).encode()
    for cut in (10, len(body)):
        with socket.create_connection(rig.http_url.split(":"), timeout=TIMEOUT_S) as peer:  # type: ignore[arg-type]
            peer.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:cut])
    rig.wait_for(lambda: rig.gate.admission.calls == 0)


# The JSON by itself

NUMBERS = st.integers() | st.floats() | st.sampled_from((1e400, -0.0, 2**63, -(2**63) - 1, 10**400))
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(("\ud800", "\0", "BYTES", "FP32", "x" * 300))
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=12
)
NAMES = st.sampled_from(("target_text", "reference_wav", "reference_wav_len", "reference_text", "x", ""))
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | TREES,
        "datatype": st.sampled_from(("BYTES", "FP32", "INT32", "INT64", "BOOL", "FP64")) | TREES,
        "shape": st.sampled_from(([1, 1], [1], [1, 3], [1, -1], [2**70, 1])) | TREES,
        "data": st.sampled_from((["abc"], [["abc"]], [1, 2, 3], [1e39], [True])) | TREES,
        "parameters": st.dictionaries(st.sampled_from(("binary_data_size", "binary_data", "x")), NUMBERS | st.booleans(), max_size=2)
        | TREES,
    },
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS | st.just(TEXT), max_size=4) | TREES},
    optional={"id": st.text(max_size=5) | TREES, "outputs": st.lists(TENSORS, max_size=2) | TREES, "parameters": TREES},
)


def written(body: Any) -> bytes:
    return json.dumps(body).encode()  # with NaN and Infinity, as Python writes and reads them


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """JSON with a byte changed, cut, repeated keys, or brackets."""
    data = bytearray(written(draw(BODIES)))
    how = draw(st.integers(0, 4))
    at = draw(st.integers(0, len(data) - 1))
    if how == 0:
        data[at] = draw(st.integers(0, 255))
    elif how == 1:
        del data[at:]
    elif how == 2:
        data = bytearray(b'{"inputs": [], "inputs": ') + data + b', "id": "a", "id": 3}'
    elif how == 3:
        data[at:at] = draw(
            st.sampled_from((50_000 * b"[", 50_000 * b'{"a":', 9 * b"[", b'"' * 3, b"\xff\xfe", b"\0", 5000 * b"9", b"1e99999"))
        )
    return bytes(data)


@given(BODIES.map(written) | damaged() | st.binary(max_size=200))
def test_any_body_is_a_request_or_refused(body: bytes) -> None:
    for json_bytes in (None, 0, len(body) // 2, len(body) + 7):
        try:
            infer = read_infer(OFFLINE, "", body, json_bytes, GateLimits())
        except InvalidInputError:
            continue
        assert "target_text" in infer.request.tensors


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
def test_samples_survive_json_exactly(samples: list[float]) -> None:
    infer = read_infer(OFFLINE, "", json.dumps({"inputs": [TEXT]}).encode(), None, GateLimits())
    response = service_pb2.ModelInferResponse(model_name=OFFLINE, model_version="1")
    response.outputs.add(name="waveform", datatype="FP32", shape=[len(samples)])
    response.raw_output_contents.append(np.array(samples, np.float32).tobytes())
    answer = json.loads(b"".join(write_answer(response, infer).pieces))
    assert np.array_equal(np.array(answer["outputs"][0]["data"], np.float32), np.array(samples, np.float32))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(JSON_VALUES)
def test_lists_and_objects_are_counted_outside_strings_only(value: Any) -> None:
    text = json.dumps(value).encode()
    assert http_json._load(text, depth_of(value)) == value
    if depth_of(value):
        with pytest.raises(InvalidInputError, match="within each other"):
            http_json._load(text, depth_of(value) - 1)


def test_one_long_text_among_numbers_takes_no_memory() -> None:
    """numpy would make an array in which every element is as long."""
    data = ["x" * 10_000, *[""] * 20_000]
    body = json.dumps({"inputs": [{"name": "reference_wav", "datatype": "FP32", "shape": [1, len(data)], "data": data}]}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="no list of values of FP32"):
            read_infer(OFFLINE, "", body, None, GateLimits())
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
