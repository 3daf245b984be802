"""The keeper's health over HTTP: Triton's paths and no others."""

from __future__ import annotations

import http.client
import socket
import struct
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


def test_ready_follows_the_server_and_live_does_not() -> None:
    ready = [False]
    with HealthServer("127.0.0.1", 0, lambda: ready[0]) as health:
        assert (status(health.port, READY), status(health.port, LIVE)) == (503, 200)
        ready[0] = True
        assert (status(health.port, READY), status(health.port, LIVE)) == (200, 200)
        assert (status(health.port, READY, "HEAD"), status(health.port, LIVE, "HEAD")) == (200, 200)
        ready[0] = False
        assert (status(health.port, READY), status(health.port, LIVE)) == (503, 200)


def test_readiness_says_why() -> None:
    with HealthServer("127.0.0.1", 0, lambda: False, describe=lambda: "It restarts — slowly.") as health:
        connection = http.client.HTTPConnection("127.0.0.1", health.port, timeout=240)
        connection.request("GET", READY)
        response = connection.getresponse()
        assert (response.status, response.read().decode()) == (503, "It restarts — slowly.")
        connection.close()


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/", 404), ("GET", "/v2/repository/index", 404), ("POST", READY, 501)])
def test_nothing_else_is_answered(method: str, path: str, code: int) -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health:
        assert status(health.port, path, method) == code


def test_metrics_are_served_where_there_are_some() -> None:
    with HealthServer("127.0.0.1", 0, lambda: False, lambda: "a 1\n") as health:
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}{METRICS}", timeout=240) as response:
            assert (response.read(), response.headers["Content-Type"]) == (b"a 1\n", "text/plain; version=0.0.4; charset=utf-8")
        assert (status(health.port, METRICS, "HEAD"), status(health.port, READY)) == (200, 503)
    with HealthServer("127.0.0.1", 0, lambda: True) as health:
        assert status(health.port, METRICS) == 404


def test_a_silent_client_does_not_block_others() -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health, socket.create_connection(("127.0.0.1", health.port)):
        assert status(health.port, READY) == 200


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
