"""The HTTP door against bodies and heads that no client would send: a status below 500 or the end of the connection, and bounded memory."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from gateway import http_server
from gateway.http_server import MAX_HEAD_BYTES, MAX_PIPELINED
from gateway.settings import GateLimits, TlsSettings
from tests.unit.gateway.requests import OFFLINE
from tests.unit.gateway.rig import TIMEOUT_S, GateRig, certificate

INFER = f"/v2/models/{OFFLINE}/infer"
TEXT = {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": ["abc"]}


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig(limits=GateLimits()) as made:
        yield made
        made.wait_for(lambda: made.gate.admission.calls == made.gate.admission.sessions == made.gate.input_budget.used == 0)
        connection = http.client.HTTPConnection(made.http_url, timeout=TIMEOUT_S)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()


def connect(rig: GateRig) -> socket.socket:
    host, _, port = rig.http_url.partition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def exchange(rig: GateRig, *parts: bytes) -> bytes:
    """All that comes back until the server closes; the client sends no more after its parts."""
    answer = b""
    with connect(rig) as peer:
        try:
            for part in parts:
                peer.sendall(part)
            peer.shutdown(socket.SHUT_WR)
            while data := peer.recv(65_536):
                answer += data
        except OSError:
            pass
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(part[1:4]) for part in answer.split(b"HTTP/1.1")[1:]]


HUGE = 64 * MAX_HEAD_BYTES
HEADS: dict[str, bytes] = {
    "a field without end": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + HUGE * b"a",
    "a long field": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + 2 * MAX_HEAD_BYTES * b"a" + b"\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\nHost: x\r\n" + (HUGE // 6) * b"a: b\r\n",
    "a long line": b"GET /" + HUGE * b"a",
    "a long line that ends": b"GET /" + 2 * MAX_HEAD_BYTES * b"a" + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long trailer": f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".encode() + (HUGE // 6) * b"a: b\r\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_over_the_limit_is_not_kept(rig: GateRig, name: str) -> None:
    assert set(statuses(exchange(rig, HEADS[name]))) <= {400, 404}


def test_requests_that_do_not_wait_for_their_answers_are_bounded(rig: GateRig) -> None:
    answered = statuses(exchange(rig, 3000 * b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert len(answered) <= 2 * MAX_PIPELINED
    few = b""
    with connect(rig) as peer:
        peer.sendall(2 * b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        peer.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while data := peer.recv(1000):
            few += data
    assert statuses(few) == [200, 200, 200]


@pytest.mark.parametrize("head", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA"])
def test_a_head_that_does_not_end_is_not_waited_for(head: bytes, monkeypatch: pytest.MonkeyPatch, rig: GateRig) -> None:
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.1)
    with connect(rig) as peer:
        peer.sendall(head)
        try:
            assert peer.recv(100) == b""
        except ConnectionError:
            pass


RAW: dict[str, bytes] = {
    "two lengths": b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc",
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a negative length": b"Content-Length: -3\r\n\r\nabc",
    "a length that is no number": b"Content-Length: 0x10\r\n\r\nabc",
    "a length beyond all": b"Content-Length: " + 40 * b"9" + b"\r\n\r\nabc",
    "a chunk that is no number": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
    "a chunk beyond all": b"Transfer-Encoding: chunked\r\n\r\n" + 30 * b"f" + b"\r\nabc",
    "a chunk that lies": b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n",
    "chunks of a byte": b"Transfer-Encoding: chunked\r\n\r\n" + 3000 * b"1\r\n{\r\n" + b"0\r\n\r\n",
    "extensions of a chunk": b"Transfer-Encoding: chunked\r\n\r\n1;" + 60_000 * b"a" + b"\r\n{\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n",
    "a blank before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a folded line": b"A: b\r\n c: d\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL": b"A: b\0c\r\nContent-Length: 2\r\n\r\n{}",
    "an upgrade": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 2\r\n\r\n{}",
    "a web socket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}",
    "an expectation": b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    "a length of the JSON beyond the body": b"Inference-Header-Content-Length: 999999999\r\nContent-Length: 2\r\n\r\n{}",
    "less body than announced": b"Content-Length: 100\r\n\r\n{}",
}


@pytest.mark.parametrize("name", RAW)
def test_raw_requests_get_a_status_below_500_or_none(rig: GateRig, name: str) -> None:
    answer = exchange(rig, f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode() + RAW[name])
    assert all(status < 500 for status in statuses(answer)), answer[:300]


@pytest.mark.parametrize(
    "start", [b"CONNECT x:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET http://x/v2 HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET / HTTP/9.9"]
)
def test_raw_request_lines(rig: GateRig, start: bytes) -> None:
    assert all(status < 500 for status in statuses(exchange(rig, start + b"\r\nHost: x\r\n\r\n")))


@pytest.mark.parametrize("word", ["\ud800", "\udfff x", "\0", "\u2028"])
def test_odd_characters_get_an_answer(rig: GateRig, word: str) -> None:
    bodies = ({"inputs": [{**TEXT, "data": [word]}]}, {"inputs": [{**TEXT, "name": word}]}, {"inputs": [TEXT], "id": word})
    with contextlib.closing(http.client.HTTPConnection(rig.http_url, timeout=TIMEOUT_S)) as connection:  # kept alive after an answer
        for body in bodies:
            connection.request("POST", INFER, json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200 or (response.status == 400 and answer["error"].startswith("INVALID_INPUT: "))


def test_bodies_that_are_not_complete_are_bounded_over_all_clients() -> None:
    limits = GateLimits(max_input_bytes=600_000)  # an address may take a quarter
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 5\r\nContent-Length: 200000\r\n\r\n".encode()
    with GateRig(limits=limits) as rig:
        with connect(rig) as first, connect(rig) as second:
            first.sendall(head + bytes(100_000))
            rig.wait_for(lambda: rig.gate.input_budget.used == 100_000)
            second.sendall(head + bytes(100_000))
            assert statuses(second.recv(1000)) == [429]
        rig.wait_for(lambda: rig.gate.input_budget.used == 0 and rig.gate.admission.calls == 0)


def test_mutual_tls_is_required_at_the_http_door_too(tmp_path: Any) -> None:
    files = certificate(tmp_path)
    with GateRig(tls=TlsSettings(files.certificate, files.private_key, files.certificate)) as rig:
        for with_certificate in (True, False):
            context = ssl.create_default_context(cafile=str(files.certificate))
            if with_certificate:
                context.load_cert_chain(files.certificate, files.private_key)
            connection = http.client.HTTPSConnection(rig.http_url, timeout=TIMEOUT_S, context=context)
            try:
                connection.request("GET", "/v2/health/live")
                assert connection.getresponse().status == 200 and with_certificate
            except OSError:
                assert not with_certificate
            finally:
                connection.close()
