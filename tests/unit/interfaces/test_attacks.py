"""Callers with bad intentions: endless and slow heads and bodies, many connections, frames without end, and keys that are not theirs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import socket
import struct
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import gateway.http_server
from gateway.http_server import MAX_HEAD_BYTES
from gateway.keys import Keys
from interfaces.core.caller import Caller
from interfaces.core.service import LINES_WITHOUT_AUDIO
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits, Settings
from tests.unit.client.fake_server import FakeServer
from tests.unit.interfaces.rig import ANNA, Running, running
from tests.unit.interfaces.test_gone_clients import wait_in_loop
from tests.unit.interfaces.test_http import wait_until
from tests.unit.interfaces.vendors import CANCELS, CARTESIA, DASHSCOPE, DEEPGRAM, MULTI, begin

WAIT_S = 120.0
SPEECH = "/v1/audio/speech"
MINE, THEIRS = "a-key-of-the-tests-1", "a-key-of-the-tests-2"


LIMITS = InterfaceLimits(max_message_bytes=5000)  # of ``front``


def exchange(front: Running, *parts: bytes) -> bytes:
    """All that comes back until the connection is closed."""
    answer = b""
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer:
        try:
            for part in parts:
                peer.sendall(part)
            while data := peer.recv(65_536):
                answer += data
        except ConnectionError:
            pass
    return answer


def statuses(answer: bytes) -> set[bytes]:
    return {part[1:4] for part in answer.split(b"HTTP/1.1")[1:]}


UPGRADE = (
    b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
HUGE = 64 * MAX_HEAD_BYTES
HEADS = {
    "a field without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + HUGE * b"a",
    "many fields": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (HUGE // 6) * b"a: b\r\n",
    "a long line": b"GET /" + HUGE * b"a",
    "many fields of a socket": b"GET " + DEEPGRAM.encode() + b" HTTP/1.1\r\n" + UPGRADE + (HUGE // 6) * b"a: b\r\n",
    "a long field of a socket": b"GET " + DEEPGRAM.encode() + b" HTTP/1.1\r\n" + UPGRADE + b"X: " + 2 * MAX_HEAD_BYTES * b"a" + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + 500 * b"\xff",
    "a body of two lengths": b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\n{}",
    "a length that is none": b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_over_the_limit_or_malformed_is_refused(front: Running, name: str) -> None:
    assert statuses(exchange(front, HEADS[name])) <= {b"400"}


def test_a_head_that_does_not_come_to_its_end_is_given_up(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.http_server, "HEADER_TIMEOUT_S", 0.05)
    with running(server.address) as front:
        for head in (b"", b"GET / HTTP/1.1\r\nHos", b"GET " + DEEPGRAM.encode() + b" HTTP/1.1\r\n" + UPGRADE):
            assert exchange(front, head) == b""


def test_the_rest_of_a_body_that_was_refused_is_not_read_for_ever(front: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer:
        peer.sendall(f"POST {SPEECH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n".encode())
        with http.client.HTTPResponse(peer, method="POST") as response:
            response.begin()
            assert response.status == 413 and response.read()
        monkeypatch.setattr(gateway.http_server, "HEADER_TIMEOUT_S", 0.05)
        peer.sendall(b"x")
        with contextlib.suppress(ConnectionError):
            assert peer.recv(1) == b""


def test_a_body_that_does_not_come_to_its_end_is_a_408(server: FakeServer) -> None:
    with running(server.address, limits=InterfaceLimits(body_timeout_s=0.05)) as front:
        for path, kind in ((SPEECH, "application/json"), ("/v1/audio/voices", "multipart/form-data; boundary=b")):
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 100\r\n\r\n--b\r\n"
            with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer:
                peer.sendall(head.encode())
                assert statuses(peer.recv(65_536)) == {b"408"}
        body = json.dumps({"model": "tts-1", "voice": "anna", "input": "x" * 400, "response_format": "pcm"}).encode()
        with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as peer:
            peer.sendall(f"POST {SPEECH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)  # at once
            with http.client.HTTPResponse(peer, method="POST") as response:
                response.begin()
                assert len(response.read()) == 400 * 960  # the answer may take longer than the body


def test_connections_of_an_address_are_bounded_and_given_back(server: FakeServer) -> None:
    with running(server.address, limits=InterfaceLimits(max_connections=8)) as front:
        for _ in range(3):
            idle = [socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) for _ in range(2)]
            wait_in_loop(front, lambda: len(front.server.server_state.connections) == 2)
            assert exchange(front, b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n") == b""
            for one in idle:
                one.close()
            wait_in_loop(front, lambda: not front.server.server_state.connections)
            assert statuses(exchange(front, b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")) == {b"200"}
        with (
            connect(front.ws + DEEPGRAM, open_timeout=WAIT_S),
            connect(front.ws + DEEPGRAM, open_timeout=WAIT_S),
            connect(front.ws + DEEPGRAM, open_timeout=WAIT_S),
        ):
            pass  # sockets have a limit of their own


def test_connections_that_come_too_fast_are_cut_before_their_requests_are_read(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("interfaces.web.http_protocol.MIN_PER_SECOND", 1e-6)
    question = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for is_behind, expected in ((False, [{b"200"}, set(), set()]), (True, [{b"200"}] * 3)):
        settings = Settings(port=0, behind_proxy=is_behind)
        with running(server.address, limits=InterfaceLimits(starts_per_second=1e-7), settings=settings) as front:
            assert [statuses(exchange(front, question)) for _ in range(3)] == expected
    assert "its connections are cut" in caplog.text


def frame(opcode: int, payload: bytes, is_final: bool) -> bytes:
    return struct.pack(">BBH4x", (0x80 if is_final else 0) | opcode, 0x80 | 126, len(payload)) + payload


def test_a_message_in_frames_without_end_closes_the_socket(front: Running) -> None:
    for first, rest in ((frame(1, b"x" * 4000, False), frame(0, b"x" * 4000, False)), (frame(2, b"", False), frame(0, b"x", False))):
        with connect(front.ws + DEEPGRAM, open_timeout=WAIT_S) as client:
            client.recv(timeout=WAIT_S)
            with pytest.raises((ConnectionClosed, OSError)):
                client.socket.sendall(first)
                for _ in range(100_000):
                    client.socket.sendall(rest)
        wait_in_loop(front, lambda: front.access.open_sockets == 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">BBQ", 0x82, 0xFF, 2**63 - 1), 1009),
        (b"\x81\x03abc", 1002),
        (b"\xf1\x80\0\0\0\0", 1002),
        (frame(1, b"\xff", True), 1007),
    ],
    ids=["an enormous frame", "without a mask", "with reserved bits", "no UTF-8"],
)
def test_frames_that_no_client_sends_close_the_socket(front: Running, data: bytes, code: int) -> None:
    with connect(front.ws + DEEPGRAM, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.socket.sendall(data)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(timeout=WAIT_S)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == code


def test_compression_is_not_spoken(front: Running) -> None:
    with connect(front.ws + DEEPGRAM, open_timeout=WAIT_S, compression="deflate") as client:
        assert not client.protocol.extensions  # no message that is larger than it was sent


def test_utterances_and_voices_of_different_keys_cannot_touch_each_other(server: FakeServer) -> None:
    limits = InterfaceLimits(max_speeches=8)  # two of a key, and of an address
    voices = VoiceStore((ANNA,))
    voice = voices.add("mine", np.zeros(16000, np.float32), "What is said.", Caller("one", "10.0.0.1"))
    with running(server.address, limits=limits, voices=voices, keys=Keys({MINE: "one", THEIRS: "two"})) as front:

        def ask(method: str, path: str, key: str, body: Any = None) -> tuple[int, Any]:
            client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_S)
            client.request(method, path, None if body is None else json.dumps(body), {"authorization": f"Bearer {key}"})
            answer = client.getresponse()
            data = answer.read()
            client.close()
            return answer.status, data

        speech = {"model": "tts-1", "voice": voice.id, "input": "Hello.", "response_format": "pcm"}
        assert ask("POST", SPEECH, MINE, speech)[0] == 200 and ask("POST", SPEECH, THEIRS, speech)[0] == 404
        assert ask("DELETE", f"/v1/audio/voices/{voice.id}", THEIRS)[0] == 404
        assert voice.id.encode() not in ask("GET", "/v1/audio/voices", THEIRS)[1]
        with pytest.raises(InvalidStatus):
            connect(front.ws + f"/v2/speak?model={voice.id}", open_timeout=WAIT_S, additional_headers={"xi-api-key": THEIRS}).__enter__()
        wait_in_loop(front, lambda: front.service.open_speeches == 0)
        held = [asyncio.run_coroutine_threadsafe(hold(front, "one"), front.loop).result(WAIT_S) for _ in range(2)]
        speech["voice"] = "anna"
        assert ask("POST", SPEECH, MINE, speech)[0] == 429 and ask("POST", SPEECH, THEIRS, speech)[0] == 200
        for one in held:
            asyncio.run_coroutine_threadsafe(one.close(), front.loop).result(WAIT_S)
        wait_in_loop(front, lambda: front.service.open_speeches == 0)
        path = "/v1/text-to-speech/anna/multi-stream-input?output_format=pcm_24000"
        with (
            connect(front.ws + path, open_timeout=WAIT_S, additional_headers={"xi-api-key": MINE}) as mine,
            connect(front.ws + path, open_timeout=WAIT_S, additional_headers={"xi-api-key": THEIRS}) as theirs,
        ):
            said = ((mine, "First"), (theirs, "Second one"))
            for client, text in said:  # the same name of a context
                client.send(json.dumps({"text": text, "context_id": "c", "flush": True}))
            theirs.send(json.dumps({"context_id": "c", "close_context": True}))
            for client, text in said:
                spoken = ""
                while spoken != text:
                    spoken += "".join((json.loads(client.recv(timeout=WAIT_S)).get("alignment") or {}).get("chars", ()))


async def hold(front: Running, key: str) -> Any:
    return front.service.open("anna", Caller(key, "10.0.0.1"))


def test_keys_texts_and_paths_are_in_no_log_and_no_answer(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    answers = b""
    secret_text = b'{"model": "m", "voice": "../../etc", "input": "A secret text."}'
    with caplog.at_level(logging.INFO), running(server.address, keys=Keys({MINE: "one"})) as front:
        for key, body in ((MINE, b'{"model": 1'), (MINE, secret_text), (THEIRS, b"{}")):
            head = f"POST {SPEECH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n"
            answers += exchange(front, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        for path in ("/page/../../../../etc/passwd", "/page/%2e%2e/%2e%2e/app.py", "/v1/text-to-speech/..%2f..%2fetc/stream"):
            answers += exchange(
                front, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nxi-api-key: {MINE}\r\n\r\n".encode()
            )
        with connect(front.ws + DEEPGRAM, open_timeout=WAIT_S, subprotocols=["token", MINE]) as client:  # type: ignore[list-item]
            client.send('{"type": "Speak", "text": "A secret text."}')
            client.send("no JSON")
    assert statuses(answers) <= {b"400", b"401", b"404", b"405"} and b"root:" not in answers and b"import " not in answers
    written = [record.getMessage() for record in caplog.records if record.name.startswith(("interfaces", "uvicorn", "bistream", "gateway"))]
    for secret in (MINE, THEIRS, "A secret text"):
        assert not any(secret in line for line in written), secret
    for place in (b"Traceback", b'File "', os.getcwd().encode()):
        assert place not in answers


REFUSALS = {  # what says that an utterance is refused
    CARTESIA: '"status_code":429',
    MULTI: "try again in",
    DASHSCOPE: '"error_code":"Throttling"',
    DEEPGRAM: '"code":"NET-0000"',
}


@pytest.mark.parametrize("path", REFUSALS)
def test_a_client_that_opens_and_cancels_is_told_to_wait_and_writes_little(
    server: FakeServer, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    messages, refusal = [*begin(path, "Hello. "), json.dumps(CANCELS[path])], REFUSALS[path]
    monkeypatch.setattr("interfaces.core.shares.MAX_PAUSE_S", 0.0)
    monkeypatch.setattr("interfaces.core.quiet_log.WINDOW_S", 1e6)
    with caplog.at_level(logging.INFO), running(server.address, limits=InterfaceLimits(starts_per_second=1e-6)) as front:
        with connect(front.ws + path, open_timeout=WAIT_S, close_timeout=0.1) as client:  # it does not read all that comes
            with contextlib.suppress(ConnectionClosed):
                for number in range(60):
                    for message in messages:
                        client.send(message.replace('"c"', f'"{number}"').replace('"t"', f'"{number}"'))  # contexts and tasks
            heard = ""
            with contextlib.suppress(ConnectionClosed):
                while refusal not in heard:
                    said = client.recv(timeout=WAIT_S)
                    heard = said if isinstance(said, str) else heard
            assert refusal in heard
        wait_until(lambda: front.access.open_sockets == 0 and front.service.open_speeches == 0)
        counts = front.service.counts
        assert counts.speeches == 1 and counts.refused >= 1
        other = asyncio.run_coroutine_threadsafe(hold(front, "another"), front.loop).result(WAIT_S)  # nobody else is refused
        asyncio.run_coroutine_threadsafe(other.close(), front.loop).result(WAIT_S)
    lines = [record for record in caplog.records if record.name.startswith("interfaces")]
    assert len([one for one in lines if one.name == "interfaces.utterances"]) <= LINES_WITHOUT_AUDIO + 1  # and the other's
    assert len([one for one in lines if "utterances per second" in one.getMessage()]) == 1


def test_sockets_of_a_key_that_comes_in_the_first_message_are_counted_for_it(server: FakeServer) -> None:
    path = "/v1/text-to-speech/anna/multi-stream-input"
    settings = Settings(port=0, behind_proxy=True)
    with (
        running(server.address, limits=InterfaceLimits(max_sockets=8), keys=Keys({MINE: "one", THEIRS: "two"}), settings=settings) as front,
        contextlib.ExitStack() as stack,
    ):

        def opened(key: str, address: str) -> Any:
            client = stack.enter_context(connect(front.ws + path, open_timeout=WAIT_S, additional_headers={"x-client-address": address}))
            client.send(json.dumps({"text": " ", "context_id": "c", "xi_api_key": key}))
            return client

        for number in range(2):
            opened(MINE, f"10.0.0.{number}")
        wait_until(lambda: front.service.open_speeches == 2)
        third = opened(MINE, "10.0.0.3")
        assert "API key has 2 WebSockets" in json.loads(third.recv(timeout=WAIT_S))["message"]
        with pytest.raises(ConnectionClosed):
            third.recv(timeout=WAIT_S)
        opened(THEIRS, "10.0.0.4")
        wait_until(lambda: front.service.open_speeches == 3 and front.access.open_sockets == 3)
    assert front.access.open_sockets == 0
