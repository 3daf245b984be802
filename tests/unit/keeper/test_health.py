"""The keeper's health over HTTP: Triton's paths and no others."""

from __future__ import annotations

import http.client
import socket
import struct
import urllib.error
import urllib.request

import pytest

from bistream.keeper.health import LIVE, METRICS, READY, HealthServer
from bistream.keeper.host import ServerError


def status(port: int, path: str, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_ready_follows_the_server_and_says_why_and_live_does_not() -> None:
    ready = [False]
    with HealthServer("127.0.0.1", 0, lambda: ready[0], describe=lambda: "It restarts — slowly.") as health:
        silent = socket.create_connection(("127.0.0.1", health.port))  # does not block others
        assert (status(health.port, READY), status(health.port, LIVE)) == (503, 200)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"http://127.0.0.1:{health.port}{READY}", timeout=240)
        assert refusal.value.read().decode() == "It restarts — slowly."
        refusal.value.close()
        ready[0] = True
        assert (status(health.port, READY), status(health.port, LIVE, "HEAD")) == (200, 200)
        silent.close()


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/", 404), ("GET", METRICS, 404), ("POST", READY, 501)])
def test_nothing_else_is_answered(method: str, path: str, code: int) -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health:
        assert status(health.port, path, method) == code


def test_metrics_are_served_where_there_are_some() -> None:
    with (
        HealthServer("127.0.0.1", 0, lambda: False, lambda: "a 1\n") as health,
        urllib.request.urlopen(f"http://127.0.0.1:{health.port}{METRICS}", timeout=240) as response,
    ):
        assert (response.read(), response.headers["Content-Type"]) == (b"a 1\n", "text/plain; version=0.0.4; charset=utf-8")


def test_a_client_that_hangs_up_leaves_no_stack_trace(capfd: pytest.CaptureFixture[str]) -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health:
        rude = socket.create_connection(("127.0.0.1", health.port))
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets the connection
        rude.sendall(b"GET /v2/health/ready")
        rude.close()
        assert status(health.port, READY) == 200
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"Health port {port}"):
            HealthServer("127.0.0.1", port, lambda: True)
