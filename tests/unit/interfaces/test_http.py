"""OpenAI's routes over real connections: formats, events, errors, keys, origins, limits, voices, drain, clients that vanish."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import json
import socket
import time
import wave
from typing import Any

import av
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.keys import Keys
from interfaces.__main__ import hosts_of
from interfaces.core.caller import Caller
from interfaces.core.voices import VoiceStore
from interfaces.options import parse_arguments
from interfaces.settings import InterfaceLimits, Settings
from interfaces.web.access import Access
from tests.unit.client.fake_server import FakeServer, Received, Stream
from tests.unit.interfaces.rig import ANNA, SAMPLES_PER_CHARACTER, Running, reading, running

KEY = "a-key-of-the-tests"
WAIT_S = 120.0
TEXT = "A text that is long enough to be made in pieces."


LIMITS = InterfaceLimits(max_body_bytes=20_000, max_recording_s=3.0)  # of ``front``


def ask(front: Running, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
    """Status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    try:
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def speech(front: Running, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any, bytes]:
    given = {"model": "tts-1", "voice": "alloy", "input": TEXT, **fields}
    return ask(front, "POST", "/v1/audio/speech", given, headers)


def error_of(answer: tuple[int, Any, bytes]) -> dict[str, Any]:
    error = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def seconds(data: bytes) -> float:
    with av.open(io.BytesIO(data), "r") as container:
        frames: list[Any] = list(container.decode(audio=0))
        return float(sum(frame.samples / frame.sample_rate for frame in frames))


@pytest.mark.parametrize(
    ("name", "kind", "delay_s"),
    [
        ("mp3", "audio/mpeg", 0.1),
        ("opus", "audio/ogg", 0.01),
        ("aac", "audio/aac", 0.1),
        ("flac", "audio/flac", 0),
        ("wav", "audio/wav", 0),
    ],
)
def test_every_format_holds_the_whole_speech(front: Running, name: str, kind: str, delay_s: float) -> None:
    status, headers, data = speech(front, response_format=name)
    assert status == 200 and headers["content-type"] == kind and headers["transfer-encoding"] == "chunked"
    length = len(TEXT) * SAMPLES_PER_CHARACTER / 24000
    assert length - 0.001 <= seconds(data) <= length + delay_s + 0.001


def test_pcm_is_the_samples_and_mp3_the_default(front: Running) -> None:
    status, headers, data = speech(front, response_format="pcm")
    assert headers["content-type"] == "audio/pcm" and len(data) == 2 * len(TEXT) * SAMPLES_PER_CHARACTER
    assert set(np.frombuffer(data, "<i2")) == {round(0.25 * 32767)}
    assert speech(front)[1]["content-type"] == "audio/mpeg"


def test_a_streamed_wav_has_a_header_of_unknown_length(front: Running) -> None:
    data = speech(front, response_format="wav")[2]
    assert (
        data[:4] == b"RIFF" and data[4:8] == data[40:44] == b"\xff\xff\xff\xff" and len(data) == 44 + 2 * len(TEXT) * SAMPLES_PER_CHARACTER
    )


@pytest.mark.parametrize(
    ("fields", "content_type", "samples_per_second"),
    [
        ({"response_format": "g711_ulaw"}, "audio/basic", 8_000),
        ({"response_format": "g711_alaw"}, "audio/x-alaw-basic", 8_000),
        ({"response_format": "g711_ulaw", "sample_rate": 16_000}, "audio/basic", 16_000),
        ({"response_format": "pcm", "sample_rate": 8_000}, "audio/pcm", 2 * 8_000),
    ],
)
def test_telephony_has_its_formats_and_any_rate(front: Running, fields: dict[str, Any], content_type: str, samples_per_second: int) -> None:
    """Raw: as many bytes as samples, or twice as many; the resampler's filter may round by one sample."""
    status, headers, data = speech(front, **fields)
    assert (status, headers["content-type"]) == (200, content_type)
    assert abs(len(data) - samples_per_second * len(TEXT) * SAMPLES_PER_CHARACTER // 24_000) <= 2


def test_events_carry_the_same_bytes_and_the_usage(front: Running) -> None:
    _, headers, data = speech(front, response_format="pcm", stream_format="sse")
    assert headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == speech(front, response_format="pcm")[2]
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done" and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] == len(TEXT) // 2  # 40 ms each


def test_extensions_reach_the_server(server: FakeServer, front: Running) -> None:
    speech(front, seed=7, temperature=0.5, top_k=3, top_p=0.25, speed=1.5, unknown={"a": 1}, voice={"id": "anna"})
    inputs = server.received[-1].inputs
    given = {name: float(inputs[name].reshape(-1)[0]) for name in ("seed", "temperature", "top_k", "top_p", "speed")}
    assert given == {"seed": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "speed": 1.5}
    assert inputs["speaker_id"] == b"anna"


def test_texts_are_markdown_unless_the_request_says_otherwise(server: FakeServer, front: Running) -> None:
    speech(front)
    assert server.received[-1].inputs["text_normalization"] == b"+markdown"
    speech(front, text_type="ssml", lexicon={"SQL": "sequel"})
    assert server.received[-1].inputs["text_type"] == b"ssml" and server.received[-1].inputs["lexicon"] == b'{"SQL": "sequel"}'
    speech(front, text_normalization="raw")
    assert server.received[-1].inputs["text_normalization"] == b"raw"


@pytest.mark.parametrize(
    ("model", "instructions", "told"),
    [
        ("gpt-4o-mini-tts", "用四川话说这句话", "用四川话说这句话".encode()),
        ("my-own-name", "calm", b"calm"),
        ("tts-1", "calm", None),  # with these two models they have no effect at OpenAI either
        ("tts-1-hd", "calm", None),
        ("gpt-4o-mini-tts", " ", None),
        ("gpt-4o-mini-tts", None, None),
    ],
)
def test_instructions_reach_the_server(
    server: FakeServer, front: Running, model: str, instructions: str | None, told: bytes | None
) -> None:
    assert speech(front, model=model, instructions=instructions)[0] == 200
    assert server.received[-1].inputs.get("instruct_text") == told


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"input": ""}, 400, "input", None),
        ({"input": "  "}, 400, "input", None),
        ({"input": "x" * 4097}, 400, "input", None),
        ({"input": 5}, 400, "input", None),
        ({"instructions": "x" * 4097}, 400, "instructions", None),
        ({"model": "m", "instructions": "x" * 4001}, 400, "instructions", None),  # of a server with the default limit
        ({"instructions": ["calm"]}, 400, "instructions", None),
        ({"voice": "bob"}, 404, "voice", "voice_not_found"),
        ({"voice": None}, 400, "voice", None),
        ({"speed": 4}, 400, "speed", None),
        ({"speed": "fast"}, 400, "speed", None),
        ({"response_format": "ogg"}, 400, "response_format", None),
        ({"sample_rate": 44_101}, 400, "sample_rate", None),
        ({"response_format": "g711_ulaw", "sample_rate": 7_999}, 400, "sample_rate", None),
        ({"sample_rate": "8 kHz"}, 400, "sample_rate", None),
        ({"stream_format": "x"}, 400, "stream_format", None),
        ({"seed": -1}, 400, "seed", None),
        ({"seed": 2**70}, 400, "seed", None),
        ({"top_k": 2**40}, 400, "top_k", None),
        ({"temperature": 1e308}, 400, "temperature", None),
        ({"text_normalization": "fr"}, 400, "text_normalization", None),
    ],
)
def test_wrong_fields_are_named(front: Running, fields: dict[str, Any], status: int, param: str, code: str | None) -> None:
    answer = speech(front, **fields)
    error = error_of(answer)
    assert (answer[0], error["param"], error["code"]) == (status, param, code)
    assert answer[1]["x-should-retry"] == "false" and error["message"].endswith(".")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 10_000])
def test_a_body_that_is_no_object_is_a_400(front: Running, body: bytes) -> None:
    answer = ask(front, "POST", "/v1/audio/speech", body)
    assert answer[0] == 400 and error_of(answer)["type"] == "invalid_request_error"


def test_a_body_beyond_the_limit_is_a_413_whether_it_says_so_or_not(front: Running) -> None:
    assert ask(front, "POST", "/v1/audio/speech", b"x" * 20_001)[0] == 413
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)
    connection.request(
        "POST", "/v1/audio/speech", iter([b"x" * 15_000, b"x" * 15_000]), encode_chunked=True, headers={"transfer-encoding": "chunked"}
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_a_refusal_is_heard_by_a_client_that_is_still_writing(front: Running) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)) as connection:
        for path, size, status in (("/v1/audio/speech", 2**24, 413), ("/v1/models", 0, 200)):  # more than both sockets hold
            connection.request("POST" if size else "GET", path, bytes(size))
            answer = connection.getresponse()
            assert answer.status == status and answer.read()


def test_a_refusal_is_heard_where_the_connection_ends_with_it(front: Running) -> None:
    """As Python's urllib wants it."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer:
        peer.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 16777216\r\n\r\n")
        peer.sendall(bytes(2**24))
        with http.client.HTTPResponse(peer, method="POST") as response:
            response.begin()
            assert response.status == 413 and response.read()
        assert peer.recv(1) == b""


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_http2_is_no_obstacle(front: Running, is_chunked: bool) -> None:
    """As Java's HttpClient makes it with every request."""
    given = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": "pcm"}
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)) as connection:
        for _ in range(2):
            body = json.dumps(given).encode()
            connection.request("POST", "/v1/audio/speech", iter([body]) if is_chunked else body, offer, encode_chunked=is_chunked)
            answer = connection.getresponse()
            assert (answer.status, len(answer.read())) == (200, 2 * len(TEXT) * SAMPLES_PER_CHARACTER)


def test_every_answer_has_a_request_id(front: Running) -> None:
    for path in ("/health/live", "/v1/models", "/nowhere"):
        assert ask(front, "GET", path)[1]["x-request-id"].startswith("req_")
    assert ask(front, "GET", "/v1/models", headers={"x-request-id": "mine-1"})[1]["x-request-id"] == "mine-1"
    assert ask(front, "GET", "/v1/models", headers={"x-request-id": "a b"})[1]["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/", "/page/app.js", "/v1/models", "/nowhere", "/v1/audio/speech"])
def test_head_is_answered_as_get_without_the_body(front: Running, path: str) -> None:
    """``wget --spider`` asks so, in health checks of containers."""
    (status, headers, data), (get_status, get_headers, _) = (ask(front, method, path) for method in ("HEAD", "GET"))
    assert (status, headers["content-length"], data) == (get_status, get_headers["content-length"], b"")


def test_models_and_voices_in_the_forms_of_their_clients(front: Running) -> None:
    models = json.loads(ask(front, "GET", "/v1/models")[2])
    assert models["object"] == "list" and {"id", "object", "created", "owned_by"} == set(models["data"][0])
    assert ask(front, "GET", "/v1/models/tts-1")[0] == 200
    assert error_of(ask(front, "GET", "/v1/models/nix"))["code"] == "model_not_found"
    assert {"id"} == set(json.loads(ask(front, "GET", "/v1/audio/models")[2])["models"][0])
    voices = json.loads(ask(front, "GET", "/v1/audio/voices")[2])["voices"]
    assert {"anna", "alloy", "verse"} <= {voice["id"] for voice in voices} and all(voice["name"] for voice in voices)
    assert json.loads(ask(front, "GET", "/v1/voices")[2])["voices"][0] == {"voice_id": "anna", "name": "anna", "category": "premade"}


def test_unknown_addresses_and_methods_have_the_same_error_form(front: Running) -> None:
    assert ask(front, "GET", "/v1/nothing")[0] == 404 and error_of(ask(front, "GET", "/v1/nothing"))
    assert ask(front, "GET", "/v1/audio/speech")[0] == 405 and error_of(ask(front, "GET", "/v1/audio/speech"))
    assert ask(front, "GET", "/page/../../settings.py")[0] == 404 and ask(front, "GET", "/page/%2e%2e/app.py")[0] == 404


def recording(duration_s: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(np.zeros(2 * round(44100 * duration_s), "<i2").tobytes())
    return buffer.getvalue()


def upload(front: Running, data: bytes, headers: dict[str, str] | None = None, **fields: str) -> tuple[int, Any, bytes]:
    return multipart(front, "/v1/audio/voices", fields, [("audio_sample", "a.wav", data)], headers)


def multipart(
    front: Running, path: str, fields: dict[str, str], files: list[tuple[str, str, bytes]], headers: dict[str, str] | None = None
) -> tuple[int, Any, bytes]:
    """files: field, name, content."""
    boundary = "x-boundary"
    body = b""
    for name, value in fields.items():
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for field, name, data in files:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: audio/wav\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return ask(front, "POST", path, body, {"content-type": f"multipart/form-data; boundary={boundary}", **(headers or {})})


def test_a_voice_is_uploaded_spoken_with_and_deleted(server: FakeServer, front: Running) -> None:
    answer = upload(front, recording(), name="mine", transcript="What I say.", consent="yes", type="audio/wav")
    voice = json.loads(answer[2])
    assert answer[0] == 200 and voice["object"] == "audio.voice" and voice["id"].startswith("voice_") and voice["type"] == "audio_sample"
    assert speech(front, voice="mine")[0] == speech(front, voice={"id": voice["id"]})[0] == 200
    start = next(one for one in reversed(server.received) if "reference_wav" in one.inputs)
    assert start.inputs["reference_wav"].shape == (1, 16000) and start.inputs["reference_text"] == b"What I say."
    path, mine = f"/v1/audio/voices/{voice['id']}", {"x-voice-secret": voice["secret"]}
    assert ask(front, "DELETE", path)[0] == ask(front, "DELETE", path, headers={"x-voice-secret": "x"})[0] == 403
    assert json.loads(ask(front, "DELETE", path, headers=mine)[2]) == {"id": voice["id"], "object": "audio.voice.deleted", "deleted": True}
    assert speech(front, voice="mine")[0] == 404 and ask(front, "DELETE", path, headers=mine)[0] == 404
    assert ask(front, "DELETE", "/v1/audio/voices/anna")[0] == 404  # the command line's


def test_wrong_uploads_are_refused_with_a_sentence(front: Running) -> None:
    assert "lasts 0.2 s" in error_of(upload(front, recording(0.2), name="a", transcript="x"))["message"]
    assert "longer than 3 s" in error_of(upload(front, recording(4.0), name="a", transcript="x"))["message"]
    assert "cannot be decoded" in error_of(upload(front, b"RIFFxxxx", name="a", transcript="x"))["message"]
    assert error_of(upload(front, recording(), name="a"))["param"] == "transcript"
    assert error_of(upload(front, recording(), transcript="x"))["param"] == "name"
    assert upload(front, recording(), name="a" * 65, transcript="x")[0] == 400
    assert ask(front, "POST", "/v1/audio/voices", b"x", {"content-type": "text/plain"})[0] == 400


def test_keys_come_in_all_headers(server: FakeServer) -> None:
    keys = Keys({KEY: "mine"})
    with running(server.address, keys=keys) as front:
        for headers in (
            {"authorization": f"Bearer {KEY}"},
            {"authorization": f"bearer {KEY}"},
            {"authorization": f"Token {KEY}"},
            {"xi-api-key": KEY},
            {"x-api-key": KEY},
        ):
            assert speech(front, headers)[0] == 200, headers
        for wrong in ({}, {"authorization": f"Basic {KEY}"}, {"authorization": "Bearer"}, {"xi-api-key": KEY + "x"}):
            answer = speech(front, wrong)
            assert answer[0] == 401 and error_of(answer)["code"] == "invalid_api_key" and KEY.encode() not in answer[2]
        assert ask(front, "GET", "/metrics")[0] == ask(front, "GET", "/v1/models")[0] == 401
        assert ask(front, "GET", "/")[0] == ask(front, "GET", "/health/live")[0] == ask(front, "GET", "/health/ready")[0] == 200


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost", True), ("LOCALHOST:8080", True), ("127.0.0.1:1", True), ("[::1]", True), ("[::1]:8080", True),
        ("localhost.:80", True),
        ("good.example", True), ("Good.Example:443", True), ("a.under.example", True), ("a.b.under.example:1", True),
        ("evil.example", False), ("under.example", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example:80", False),
        ("xgood.example", False), ("[::2]", False), ("127.0.0.2", False), ("", False), (None, False),
        ("localhost:x", False), ("@localhost", False),
    ],
)  # fmt: skip
def test_hosts_are_those_of_loopback_and_of_the_setting(host: str | None, is_allowed: bool) -> None:
    assert Access(None, InterfaceLimits(), hosts=("GOOD.example", "*.under.example")).allows_host(host) == is_allowed
    assert Access(None, InterfaceLimits(), hosts=("*",)).allows_host(host)


def test_a_concrete_address_to_listen_at_is_a_host() -> None:
    def hosts(*arguments: str) -> tuple[str, ...]:
        return hosts_of(parse_arguments(arguments, {}))

    assert hosts() == ("127.0.0.1",) and hosts("--address", "10.0.0.7") == ("10.0.0.7",) and hosts("--address", "fd00::1") == ("[fd00::1]",)
    assert hosts("--address", "0.0.0.0") == hosts("--address", "::") == ()
    assert hosts("--address", "::", "--allowed-hosts", "a,b", "c", "--allowed-hosts", "d") == ("a", "b", "c", "d")


def test_pages_whose_name_stands_for_this_machine_are_kept_out(front: Running) -> None:
    for path in ("/", "/page/app.js", "/v1/models", "/v1/audio/voices"):
        assert ask(front, "GET", path, headers={"host": "evil.example", "origin": "http://evil.example"})[0] == 400
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert ask(front, "GET", path, headers={"host": "10.1.2.3"})[0] == 200
    with pytest.raises(InvalidStatus, match="400"):
        connect(f"ws://evil.example:{front.port}/tts/websocket", sock=socket.create_connection(("127.0.0.1", front.port))).__enter__()


def test_behind_a_proxy_its_header_says_who_calls(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interfaces.core.shares.MAX_PAUSE_S", 0.0)
    limits = InterfaceLimits(starts_per_second=1e-6)  # one each
    for is_behind, expected in ((False, [200, 429, 429]), (True, [200, 429, 200])):
        settings = Settings(port=0, limits=limits, behind_proxy=is_behind)
        with running(server.address, limits=limits, settings=settings) as front:
            addresses = ["10.0.0.1", "10.0.0.1", "2001:db8::1"]
            answers = [speech(front, {"x-client-address": address}) for address in addresses]
        assert [answer[0] for answer in answers] == expected
        assert all(answer[1]["retry-after"] and error_of(answer)["code"] == "busy" for answer in answers if answer[0] == 429)


def test_pages_of_other_sites_are_kept_out_unless_they_are_allowed(server: FakeServer, front: Running) -> None:
    answer = speech(front, {"origin": "https://evil.example"})
    assert answer[0] == 400 and "access-control-allow-origin" not in answer[1]
    assert speech(front, {"origin": front.http})[0] == 200
    with running(server.address, origins=("https://good.example",)) as open_front:
        answer = speech(open_front, {"origin": "https://good.example"})
        assert answer[0] == 200 and answer[1]["access-control-allow-origin"] == "https://good.example"
        preflight = {
            "origin": "https://good.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        assert ask(open_front, "OPTIONS", "/v1/audio/speech", headers=preflight)[0] == 200
        assert speech(open_front, {"origin": "https://evil.example"})[0] == 400


def test_a_full_server_is_429_with_retry_after() -> None:
    with (
        reading(lambda request, stream: stream.error(request.id, "BUSY: All sessions are taken. [retry_after_s 2.5]")) as server,
        running(server.address) as front,
    ):
        answer = speech(front)
        assert answer[0] == 429 and answer[1]["retry-after"] == "3" and answer[1]["x-should-retry"] == "true"
        assert error_of(answer)["code"] == "busy"


def test_no_server_is_503_and_not_ready() -> None:
    with running("127.0.0.1:1") as front:
        answer = speech(front)
        assert answer[0] == 503 and "retry-after" in answer[1] and b"127.0.0.1" not in answer[2]
        assert ask(front, "GET", "/health/ready")[0] == 503


def failing_later(request: Received, stream: Stream) -> None:
    stream.audio(request.id, np.zeros(24000), 0, 1)
    stream.error(request.id, "ENGINE_ERROR: Computing failed; try again.")


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_a_failure_after_the_first_byte_cuts_the_connection(stream_format: str, caplog: pytest.LogCaptureFixture) -> None:
    with reading(failing_later) as server, running(server.address) as front:
        with pytest.raises(http.client.IncompleteRead) as caught:
            speech(front, response_format="pcm", stream_format=stream_format)
        assert len(caught.value.partial) >= 48_000
        assert (b"speech.audio.error" in caught.value.partial) == (stream_format == "sse")
    assert "Traceback" not in caplog.text


def holding(request: Received, stream: Stream) -> None:
    """Speaks a little and never ends."""
    if "is_cancel" not in request.inputs and request.flag("is_start"):
        stream.audio(request.id, np.zeros(24000), 0, 1)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_drain_answers_503_and_ends_what_does_not_end_itself() -> None:
    with reading(holding) as server, running(server.address) as front:
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)
        connection.request("POST", "/v1/audio/speech", json.dumps({"model": "m", "voice": "anna", "input": "x", "response_format": "pcm"}))
        response = connection.getresponse()
        assert response.read(10)
        draining = asyncio.run_coroutine_threadsafe(front.service.drain(0.3), front.loop)
        wait_until(front.service.drains.is_set)
        answer = speech(front)
        assert answer[0] == 503 and answer[1]["retry-after"] and error_of(answer)["code"] == "shutting_down"
        assert ask(front, "GET", "/health/ready")[0] == 503 and ask(front, "GET", "/health/live")[0] == 200
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        draining.result(WAIT_S)
        connection.close()


OWNER = Caller("key", "10.0.0.1")


def test_voices_in_a_shared_folder_are_seen_by_another_process(tmp_path: Any) -> None:
    first, second = (VoiceStore((ANNA,), tmp_path / "voices") for _ in range(2))
    made = first.add("mine", np.zeros(16000, np.float32), "Hello.", OWNER)
    (found,) = [voice for voice in second.all_of("key") if voice.id == made.id]
    assert (found.name, found.transcript, found.owner) == ("mine", "Hello.", OWNER.key)
    assert found.samples is not None and made.samples is not None and np.array_equal(found.samples, made.samples)
    second.delete(made.id, OWNER)
    assert [voice.id for voice in first.all_of("key")] == ["anna"]
    (tmp_path / "voices" / f"voice_{'0' * 32}.npz").write_bytes(b"damaged")
    assert [voice.id for voice in first.all_of(None)] == ["anna"]


def test_other_names_of_voices_are_listed(server: FakeServer) -> None:
    voices = VoiceStore((ANNA,), aliases=(("narrator", "anna"), ("nova", "anna"), ("ghost", "nobody")))
    with running(server.address, voices=voices) as front:
        listed = [voice["id"] for voice in json.loads(ask(front, "GET", "/v1/audio/voices")[2])["voices"]]
        assert listed[:3] == ["anna", "narrator", "nova"] and "ghost" not in listed and len(listed) == len(set(listed))
        assert speech(front, voice="narrator")[0] == 200


def test_too_many_voices_are_an_error_that_no_client_retries(server: FakeServer) -> None:
    with running(server.address, limits=InterfaceLimits(max_voices=1)) as front:
        assert upload(front, recording(), name="first", transcript="x")[0] == 200
        answer = upload(front, recording(), name="second", transcript="x")
        assert answer[0] == 429 and answer[1]["x-should-retry"] == "false" and "delete one" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("origin", "is_allowed"), [(None, True), ("http://a:1", True), ("http://b:1", False), ("http://[", False), ("", False)]
)
def test_an_origin_is_the_pages_own_or_none(origin: str | None, is_allowed: bool) -> None:
    assert Access(None, InterfaceLimits()).allows_origin(origin, "a:1") == is_allowed
