"""Random bytes, frames, messages, bodies and addresses over real sockets: no trace in the log, and the next client is served."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import logging
import socket
import struct
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interfaces.settings import InterfaceLimits
from tests.unit.interfaces.rig import Running, reading, running
from tests.unit.interfaces.test_hostile_messages import ANYTHING, HOSTILE, MESSAGES

WAIT_S = 120.0
SOCKETS = {
    "deepgram": "/v2/speak?model=anna",
    "deepgram v1": "/v1/speak?model=anna",
    "cartesia": "/tts/websocket",
    "dashscope": "/api-ws/v1/inference",
    "multi": "/v1/text-to-speech/anna/multi-stream-input",
    "single": "/v1/text-to-speech/anna/stream-input",
}
POSTS = ("/v1/audio/speech", "/v1/text-to-speech/anna", "/v1/text-to-speech/anna/with-timestamps", "/v1/speak", "/tts/bytes", "/tts/sse")
UPLOADS = ("/v1/audio/voices", "/v1/voices/add", "/voices/clone")
GETS = (
    "/", "/page/", "/v1/voices/", "/v2/voices", "/v1/models/", "/voices/", "/voices", "/v1/load", "/v1/audio/voices/", "/metrics",
    "/v1/speak",
)  # fmt: skip
FIELDS = ("model", "input", "text", "transcript", "voice", "output_format", "generation_config", "voice_settings", "speed", "seed",
          "instructions", "response_format", "stream_format", "temperature", "top_k", "top_p", "text_normalization", "context_id",
          "add_timestamps", "sample_rate")  # fmt: skip
KEY = base64.b64encode(bytes(16)).decode()
many = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HUGE_NUMBERS = st.sampled_from([10**20, -(10**400), 1e308, 5000 * "9"])


@pytest.fixture(scope="module")
def front() -> Iterator[Running]:
    limits = InterfaceLimits(starts_per_second=0, max_body_bytes=20_000, max_upload_bytes=50_000, max_text_chars=100)
    with reading() as server, running(server.address, limits=limits) as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(front: Running, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The log after each test: faults of this program would be in it."""
    yield
    faults = [record for record in caplog.get_records("call") if record.exc_info or record.levelno >= logging.ERROR]
    assert not [f"{one.name}: {one.getMessage()} {one.exc_info}" for one in faults]
    assert said(front, "GET", "/health/live")[0] == 200


def said(front: Running, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)
    try:
        client.request(method, path, body, {"content-type": kind})
        answer = client.getresponse()
        with contextlib.suppress(http.client.IncompleteRead):  # a failure after the first byte
            return answer.status, answer.read()
        return answer.status, b""
    finally:
        client.close()


def sent(front: Running, data: bytes, head: bytes = b"") -> bytes:
    """All that comes back until the server has closed, which it does where it is told nothing more. head: is answered before."""
    answer = b""
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer, contextlib.suppress(OSError):
        peer.sendall(head)
        while head and b"\r\n\r\n" not in answer:
            answer += peer.recv(65_536)
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while part := peer.recv(65_536):
            answer += part
    return answer


def handshake(path: str, more: bytes = b"") -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    return head.encode() + f"Sec-WebSocket-Key: {KEY}\r\n".encode() + more + b"\r\n"


def frame(opcode: int, payload: bytes, is_final: bool = True, rsv: int = 0, is_masked: bool = True, length: int | None = None) -> bytes:
    claimed = len(payload) if length is None else length
    head = struct.pack(">BBQ", (0x80 if is_final else 0) | rsv << 4 | opcode, (0x80 if is_masked else 0) | 127, claimed)
    return head + (bytes(4) if is_masked else b"") + payload


def mostly(strategy: st.SearchStrategy[int], usual: int) -> st.SearchStrategy[int]:
    return st.just(usual) | strategy | st.just(usual)


FRAMES = st.builds(
    frame,
    st.sampled_from([0, 1, 1, 2, 8, 9, 10, 3, 11]),
    st.binary(max_size=40)
    | st.sampled_from([b"\xff", b"\xc3", b"{}", b"\x03\xe8\xff", b"\x00", b'{"text": "\xed\xa0\x80"}'])
    | HOSTILE.map(
        lambda message: message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
    ),
    st.booleans(),
    mostly(st.integers(0, 7), 0),
    st.sampled_from([True, True, True, False]),
    st.none() | st.none() | st.integers(0, 2**64 - 1),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(SOCKETS))
@many
@given(data=st.data())
def test_frames_and_messages(front: Running, name: str, data: st.DataObject) -> None:
    kinds = MESSAGES[name].map(json.dumps)
    messages = (kinds | kinds.map(lambda text: text.replace('"anna"', '"\\ud800"'))).map(lambda text: frame(1, text.encode()))
    frames = data.draw(st.lists(messages, max_size=4)) + data.draw(st.lists(FRAMES, max_size=4))
    assert sent(front, b"".join(frames), handshake(SOCKETS[name])).startswith(b"HTTP/1.1 101")


@many
@given(
    head=st.sampled_from([handshake(path) for path in SOCKETS.values()] + [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]),
    cuts=st.lists(st.tuples(st.integers(0, 250), st.integers(0, 20), st.binary(max_size=12)), min_size=1, max_size=3),
)
def test_damaged_heads(front: Running, head: bytes, cuts: list[tuple[int, int, bytes]]) -> None:
    for at, length, put in cuts:
        head = head[:at] + put + head[at + length :]
    sent(front, head)


QUERIES = ["page_size", "limit", "next_page_token", "starting_after", "ending_before", "search", "q", "output_format", "encoding", "speed",
           "sample_rate", "model", "bit_rate", "container", "voice_ids", "is_owner", "text_normalization"]  # fmt: skip
VALUES = st.text(max_size=6) | st.sampled_from(["\u0663", "\x00", "-1", "nan", "1e400", 5000 * "9", "10"])
ENDS = st.text(max_size=8).map(lambda text: quote(text.encode("utf-8", "surrogatepass"))) | st.sampled_from(
    ["%00", "%ff%fe", "..%2f..", "%00/settings", 1000 * "a", 300 * "%C3", "//", "/../" * 9]
)


@many
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS"]),
    path=st.sampled_from([*GETS, *POSTS, *UPLOADS, *SOCKETS.values()]),
    rest=ENDS,
    query=st.lists(st.tuples(st.sampled_from(QUERIES), VALUES), max_size=3),
)
def test_addresses(front: Running, method: str, path: str, rest: str, query: list[tuple[str, str]]) -> None:
    words = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}" for name, value in query)
    target = f"{path}{'' if '?' in path else rest}{'&' if '?' in path else '?'}{words}"
    assert said(front, method, target, b"{}")[0] < 500


BODIES = st.dictionaries(st.sampled_from(FIELDS), ANYTHING | HUGE_NUMBERS | st.just("anna"), max_size=8).map(json.dumps)


@many
@given(path=st.sampled_from(POSTS), body=BODIES | st.text(max_size=20))
def test_bodies(front: Running, path: str, body: str) -> None:
    given = {"model": "m", "voice": "anna", "input": "Hi.", "text": "Hi.", "transcript": "Hi.", "output_format": {"container": "raw"}}
    with contextlib.suppress(ValueError, TypeError):
        body = json.dumps({**given, **json.loads(body)})
    assert said(front, "POST", path, body.encode("utf-8", "surrogatepass"))[0] < 500


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nmine\r\n'
    b'--b\r\nContent-Disposition: form-data; name="transcript"\r\n\r\nWords.\r\n'
    b'--b\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b"RIFF\x24\0\0\0WAVEfmt \r\n--b--\r\n"
)
MULTIPART = "multipart/form-data; boundary=b"
KINDS = [MULTIPART, "multipart/form-data", "multipart/form-data; boundary=",
         f"{MULTIPART}; charset=nowhere", f"{MULTIPART}\xff", "text/plain", "",
         "application/x-www-form-urlencoded"]  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of a damaged form, starlette leaves the parts to be collected
@many
@given(
    path=st.sampled_from(UPLOADS),
    kind=st.just(MULTIPART) | st.sampled_from(KINDS),
    cuts=st.lists(st.tuples(st.integers(0, len(FORM)), st.integers(0, 40), st.binary(max_size=20)), max_size=4),
)
def test_forms(front: Running, path: str, kind: str, cuts: list[tuple[int, int, bytes]]) -> None:
    body = FORM
    for at, length, put in cuts:
        body = body[:at] + put + body[at + length :]
    assert said(front, "POST", path, body, kind)[0] < 500
