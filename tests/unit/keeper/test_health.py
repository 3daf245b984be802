"""The keeper's health over HTTP: Triton's paths and no others."""

from __future__ import annotations

import http.client
import socket

import pytest

from bistream.keeper.health import LIVE, READY, HealthServer
from bistream.keeper.host import ServerError


def status(port: int, path: str, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
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


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/", 404), ("GET", "/v2/repository/index", 404), ("POST", READY, 501)])
def test_nothing_else_is_answered(method: str, path: str, code: int) -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health:
        assert status(health.port, path, method) == code


def test_a_silent_client_does_not_block_others() -> None:
    with HealthServer("127.0.0.1", 0, lambda: True) as health, socket.create_connection(("127.0.0.1", health.port)):
        assert status(health.port, READY) == 200


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"Health port {port}"):
            HealthServer("127.0.0.1", port, lambda: True)
