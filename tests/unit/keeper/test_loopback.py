"""A proxy in the environment does not come between the processes of a host."""

from __future__ import annotations

import os
import urllib.request

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.keeper.health import LIVE, HealthServer
from bistream.keeper.host import fetch
from bistream.processes.loopback import NAMES, reach_this_host_directly
from tests.ports import port
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton


def test_this_host_is_reached_whatever_proxy_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port()}")  # where nobody listens
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "example.com")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of the process's first request
    server = FakeTriton(Speakers())
    try:
        with HealthServer("127.0.0.1", 0, lambda: True) as health, triton.InferenceServerClient(server.address) as client:
            address = f"127.0.0.1:{health.port}"
            assert fetch(address, LIVE, 240.0) is None
            with pytest.raises(InferenceServerException):
                client.is_server_ready()
            reach_this_host_directly()
            assert fetch(address, LIVE, 240.0) == (200, "")
        with triton.InferenceServerClient(server.address) as client:
            assert client.is_server_ready()
    finally:
        server.stop()
    reach_this_host_directly()
    assert os.environ["no_proxy"] == f"example.com,{NAMES}"
    assert urllib.request.proxy_bypass("[::1]:8000")


def test_no_proxy_for_any_host_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port()}")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("no_grpc_proxy", "")  # so that it is restored
    reach_this_host_directly()
    assert urllib.request.proxy_bypass("example.com")
    server = FakeTriton(Speakers())
    try:
        with triton.InferenceServerClient(server.address) as client:
            assert client.is_server_ready()
    finally:
        server.stop()
